"""Uploads go on from the last accepted byte, follow every Location, and end with the right digest."""

from __future__ import annotations

import io
import random
from collections.abc import Callable

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import LocalBlob
from imagebuild.registry.client import RegistryClient, RepositoryClient
from imagebuild.registry.settings import Location
from imagebuild.registry.uploads import LocalContent, PassingContent, begin, parse_accepted, push_blob
from imagebuild.testing.registry_client import FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble

DATA = random.Random(2).randbytes(10_000)
DIGEST = Digest.of(DATA)
BLOB = LocalBlob(Descriptor("application/octet-stream", DIGEST, len(DATA)), lambda: io.BytesIO(DATA))


def view(double: RegistryDouble, client: RegistryClient) -> RepositoryClient:
    return client.repository(Location(repository_at(double, "me/engine")), client.statistics, "pull", "push")


@pytest.fixture
def target(double: RegistryDouble, client: RegistryClient) -> RepositoryClient:
    return view(double, client)


def content(chunk: int | None = None) -> LocalContent:
    made = LocalContent(BLOB)
    if chunk is not None:
        made.chunk = chunk
    return made


def stored(double: RegistryDouble) -> bool:
    return double.repository("me/engine").blobs == {DIGEST: DATA} and double.uploads == {}


def sent(double: RegistryDouble) -> list[tuple[str, str, int]]:
    return [
        (request.method, request.headers.get("content-range", ""), request.received)
        for request in double.requests("^(PUT|PATCH)")
    ]


def test_a_small_blob_goes_in_one_put(double: RegistryDouble, target: RepositoryClient) -> None:
    push_blob(target, content())
    assert stored(double)
    assert sent(double) == [("PUT", "", 10_000)]


def test_a_large_blob_goes_in_chunks(double: RegistryDouble, target: RepositoryClient) -> None:
    push_blob(target, content(4000))
    assert stored(double)
    assert sent(double) == [
        ("PATCH", "0-3999", 4000),
        ("PATCH", "4000-7999", 4000),
        ("PATCH", "8000-9999", 2000),
        ("PUT", "", 0),
    ]


def test_chunks_are_as_large_as_the_registry_wants(
    start: Callable[..., RegistryDouble], client: RegistryClient
) -> None:
    double = start(least_chunk=6000)
    push_blob(view(double, client), content(100))
    assert stored(double)
    assert [request.received for request in double.requests("^PATCH")] == [6000, 4000]


@pytest.mark.parametrize("settings", [{}, {"absolute": True}, {"changing_locations": True, "absolute": True}])
def test_a_cut_upload_goes_on_at_the_next_byte(
    start: Callable[..., RegistryDouble], client: RegistryClient, settings: dict[str, bool]
) -> None:
    """distribution/distribution#3755, oras-project/oras-py#150"""
    double = start(**settings)
    double.fault("^PATCH", skip=1, cut_request=1500)
    push_blob(view(double, client), content(4000))
    assert stored(double)
    assert sent(double) == [
        ("PATCH", "0-3999", 4000),
        ("PATCH", "4000-7999", 1500),
        ("PATCH", "5500-9499", 4000),
        ("PATCH", "9500-9999", 500),
        ("PUT", "", 0),
    ]


def test_a_cut_put_goes_on_with_the_rest(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^PUT", cut_request=3000)
    push_blob(target, content())
    assert stored(double)
    assert sent(double) == [("PUT", "", 3000), ("PATCH", "3000-9999", 7000), ("PUT", "", 0)]


def test_416_with_a_range_says_where_to_go_on(double: RegistryDouble, target: RepositoryClient) -> None:
    def behind_our_back() -> None:
        next(iter(double.uploads.values())).data += DATA[4000:4700]

    double.fault("^PATCH", skip=1, act=behind_our_back)
    push_blob(target, content(4000))
    assert stored(double)
    assert ("PATCH", "4700-8699", 4000) in sent(double)


@pytest.mark.parametrize("status", [404, 416])
def test_a_lost_session_starts_over(double: RegistryDouble, target: RepositoryClient, status: int) -> None:
    double.fault("^PATCH", skip=1, status=status, act=double.uploads.clear)
    push_blob(target, content(4000))
    assert stored(double)
    assert len(double.requests("^POST")) == 2


def test_sessions_that_are_always_lost_end_the_upload(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^PATCH", status=404, times=999)
    with pytest.raises(RefusedError):
        push_blob(target, content(4000))
    assert len(double.requests("^POST")) == 4
    assert double.uploads == {}


def test_a_lost_answer_to_the_last_step_is_not_an_upload_more(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^PUT", status=502, after=True)
    push_blob(target, content())
    assert stored(double)
    assert len(double.requests("^PUT")) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_faults_are_waited_for(
    double: RegistryDouble, target: RepositoryClient, time: FakeTime, status: int
) -> None:
    double.fault("^PATCH", status=status, headers={"Retry-After": "7"})
    push_blob(target, content(4000))
    assert stored(double)
    assert 7.0 in time.slept


def test_another_4xx_is_final(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^PUT", status=413, body=b'{"errors":[{"code":"SIZE_INVALID","message":"too big"}]}')
    with pytest.raises(RefusedError, match=r"413 \(SIZE_INVALID: too big\)"):
        push_blob(target, content())
    assert len(double.requests("^PUT")) == 1
    assert double.uploads == {}


def test_a_201_for_another_digest_is_refused(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^PUT", headers={"Docker-Content-Digest": str(Digest.of(b""))})
    with pytest.raises(RefusedError) as caught:
        push_blob(target, content())
    assert caught.value.code == "registry.digest-mismatch"


def test_a_201_to_a_mount_of_another_digest_is_refused(double: RegistryDouble, target: RepositoryClient) -> None:
    double.put_blob("up/base", DATA)
    double.fault("^POST", headers={"Docker-Content-Digest": str(Digest.of(b""))})
    with pytest.raises(RefusedError):
        begin(target, DIGEST, mount=True, source="up/base")


def test_the_session_of_a_refused_mount_is_used(double: RegistryDouble, target: RepositoryClient) -> None:
    session = begin(target, DIGEST, mount=True, source="up/base")
    assert session is not None
    push_blob(target, content(), session)
    assert stored(double)
    assert len(double.requests("^POST")) == 1


def test_an_answer_without_a_location_is_said(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^POST", headers={"Location": ""})
    with pytest.raises(UnavailableError) as caught:
        push_blob(target, content())
    assert caught.value.code == "registry.bad-answer"


def test_a_session_that_holds_more_than_it_was_sent_starts_over(
    double: RegistryDouble, target: RepositoryClient
) -> None:
    double.fault("^PATCH", headers={"Range": "0-999999"})
    push_blob(target, content(4000))
    assert double.repository("me/engine").blobs == {DIGEST: DATA}
    assert len(double.requests("^POST")) == 2


def test_the_token_runs_out_in_the_middle_and_only_that_request_is_repeated(
    start: Callable[..., RegistryDouble], connect: Callable[..., RegistryClient]
) -> None:
    from imagebuild.testing.registry_state import Tokens

    double = start(tokens=Tokens(users={"me": "pass-word-1"}, life=60))
    client = connect(
        time=FakeTime(double), docker_config={"auths": {double.host: {"username": "me", "password": "pass-word-1"}}}
    )
    double.fault("^PATCH", skip=1, delay=100)
    push_blob(view(double, client), content(4000))
    assert stored(double)
    assert [(r.method, r.status) for r in double.requests("^P(ATCH|OST|UT)")] == [
        ("POST", 401),
        ("POST", 202),
        ("PATCH", 202),
        ("PATCH", 401),
        ("PATCH", 202),
        ("PATCH", 202),
        ("PUT", 201),
    ]
    assert sum(r.received for r in double.requests("^PATCH") if r.status == 202) == len(DATA)


def passing(data: bytes = DATA, chunk: int = 4000) -> PassingContent:
    made = PassingContent(BLOB.descriptor, lambda: io.BytesIO(data), "base layer")
    made.chunk = chunk
    return made


def test_a_passing_blob_is_sent_again_from_memory_after_a_break(
    double: RegistryDouble, target: RepositoryClient
) -> None:
    double.fault("^PATCH", skip=1, cut_request=1500)
    push_blob(target, passing())
    assert stored(double)
    assert ("PATCH", "5500-7999", 2500) in sent(double)


def test_a_passing_blob_whose_session_is_lost_is_read_again(double: RegistryDouble, target: RepositoryClient) -> None:
    double.fault("^PATCH", skip=2, status=404)
    push_blob(target, passing())
    assert stored(double)


@pytest.mark.parametrize("data", [DATA[:-1] + b"?", DATA[:-1], DATA + b"?"])
def test_the_last_chunk_of_a_wrong_blob_is_never_sent(
    double: RegistryDouble, target: RepositoryClient, data: bytes
) -> None:
    with pytest.raises(RefusedError):
        push_blob(target, passing(data))
    assert [size for _, _, size in sent(double)] == [4000, 4000]
    assert double.uploads == {}


def test_a_push_that_is_given_up_cancels_its_session(double: RegistryDouble, target: RepositoryClient) -> None:
    session = begin(target, DIGEST)
    with pytest.raises(ImagebuildError) as caught:
        push_blob(target, content(), session, lambda: True)
    assert caught.value.code == "registry.stopped"
    assert double.uploads == {}


@pytest.mark.parametrize(
    ("text", "held"),
    [("0-99", 100), ("bytes=0-99", 100), ("0-0", None), ("5-99", None), ("", None), (None, None), ("0-x", None)],
)
def test_how_much_a_session_holds(text: str | None, held: int | None) -> None:
    assert parse_accepted(text) == held
