"""Whatever goes wrong, and in whatever order: no wrong blob, no leaked credential, no tag on something incomplete."""

from __future__ import annotations

import io
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import ImagebuildError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import Document, LocalBlob
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.retry import RetryPolicy
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, make_index
from imagebuild.testing.memory import as_image
from imagebuild.testing.registry_client import FakeTime, client_for, repository_at
from imagebuild.testing.registry_double import RegistryDouble
from imagebuild.testing.registry_faults import Fault
from imagebuild.testing.registry_state import Tokens

PASSWORD, IDENTITY = "pass-word-of-the-user", "identity-token-of-the-user"
LAYERS = (LayerSpec((File("base", b"b" * 300),)), LayerSpec((File("patched", b"p" * 300),)))
INDEX = make_index(
    IndexSpec(tuple(ImageSpec(LAYERS, platform=Platform("linux", architecture)) for architecture in ("amd64", "arm64")))
)
BASE = INDEX.images[0].layers[0]


class Kept(logging.Handler):
    """Every log line of the process."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage() + str(record.args))


@pytest.fixture(scope="module")
def double() -> Iterator[RegistryDouble]:
    with RegistryDouble(tokens=Tokens()) as made:
        yield made


@pytest.fixture(scope="module")
def logged() -> Iterator[Kept]:
    handler, root = Kept(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def echoed(double: RegistryDouble) -> bytes:
    """An error page that repeats what it was shown, as debug pages do."""
    seen = [request.headers.get("authorization", "") for request in double.log]
    if any(request.method == "POST" for request in double.requests("token")):
        seen.append(IDENTITY)
    if any(value.startswith("Basic ") for value in seen):
        seen.append(PASSWORD)
    message = " ".join(sorted(set(seen)))
    return json.dumps({"errors": [{"code": "UNKNOWN", "message": message}]}).encode()


STATUSES = [200, 201, 202, 204, 301, 400, 401, 403, 404, 405, 408, 409, 416, 429, 500, 502, 503]
PATTERNS = [
    "",
    "^GET",
    "^HEAD",
    "^POST",
    "^PUT",
    "^PATCH",
    "^DELETE",
    "blobs",
    "manifests",
    "uploads",
    "mount=",
    "token",
]
FAULTS = st.fixed_dictionaries(
    {
        "pattern": st.sampled_from(PATTERNS),
        "times": st.integers(1, 3),
        "skip": st.integers(0, 4),
        "kind": st.sampled_from(["status", "after", "cut-request", "cut-response", "change", "header", "time"]),
        "status": st.sampled_from(STATUSES),
        "count": st.integers(0, 700),
        "header": st.sampled_from(
            [
                ("Location", ""),
                ("Location", "http://127.0.0.1:9/elsewhere?x=1"),
                ("Location", "/v2/me/engine/blobs/uploads/none"),
                ("Range", "0-5"),
                ("Range", "5-1"),
                ("Docker-Content-Digest", "sha256:" + "0" * 64),
                ("Docker-Content-Digest", ""),
                ("Content-Type", "text/html"),
                ("Retry-After", "1"),
                ("Link", '</v2/me/engine/tags/list>; rel="next"'),
                ("OCI-Chunk-Min-Length", "500"),
                ("OCI-Subject", ""),
                ("Content-Range", "bytes 0-1/2"),
                ("WWW-Authenticate", 'Bearer realm="http://127.0.0.1:9/token"'),
            ]
        ),
    }
)


def fault_of(double: RegistryDouble, drawn: dict[str, Any]) -> Fault:
    made = Fault(drawn["pattern"], times=drawn["times"], skip=drawn["skip"])
    kind, count = drawn["kind"], drawn["count"]
    if kind in ("status", "after"):
        made.status, made.after = drawn["status"], kind == "after"
        made.act = lambda: setattr(made, "body", echoed(double))
        made.headers = dict([drawn["header"]])
    elif kind == "cut-request":
        made.cut_request = count
    elif kind == "cut-response":
        made.cut_response = count
    elif kind == "change":
        made.change = lambda body: body[: count % (len(body) + 1)] + b"?" + body[count % (len(body) + 1) + 1 :]
    elif kind == "header":
        made.headers = dict([drawn["header"]])
    else:
        made.delay = 100.0
    return made


def referrer() -> tuple[Document, list[LocalBlob]]:
    config = LocalBlob(Descriptor("application/vnd.oci.empty.v1+json", Digest.of(b"{}"), 2), lambda: io.BytesIO(b"{}"))
    value = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor.to_json(),
        "layers": [config.descriptor.to_json()],
        "subject": INDEX.descriptor.to_json(),
    }
    raw = json.dumps(value).encode()
    return Document(Descriptor(str(value["mediaType"]), Digest.of(raw), len(raw)), raw), [config]


def everything(client: RegistryClient, double: RegistryDouble, errors: list[ImagebuildError], lies: bool) -> None:
    """A push, a referrer, and everything read back; what fails is noted."""
    base = RegistrySource(client, repository_at(double, "up/base"))
    sink = RegistrySink(client, repository_at(double, "me/engine"), allow_base_transfer=True)
    there = RegistrySource(client, repository_at(double, "me/engine"))

    def read_blob() -> None:
        with base.open_blob(BASE.descriptor) as stream:
            assert read_verified(stream, BASE.descriptor.digest, BASE.descriptor.size) == BASE.blob

    def stored() -> None:
        result = sink.store(as_image(INDEX, base=base), "v1")
        assert result.digest == INDEX.digest
        # A registry that says 201 and stores nothing cannot be told from one that stored.
        assert lies or double.tag("me/engine", "v1") == INDEX.digest

    def documents() -> None:
        assert Digest.of(there.read_document(INDEX.digest)[0]) == INDEX.digest

    for act in (
        read_blob,
        stored,
        lambda: sink.attach(*referrer()),
        documents,
        lambda: there.referrers(INDEX.digest),
        there.tags,
    ):
        try:
            act()
        except ImagebuildError as error:
            errors.append(error)


def shown(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error} {error!r} {error.args} {getattr(error, 'details', '')}"
        if isinstance(error, ImagebuildError):
            yield json.dumps(error.document())
        error = error.__cause__ or error.__context__


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FAULTS, max_size=8), st.booleans(), st.sampled_from(["from", "any", "never"]), st.booleans())
def test_no_sequence_of_faults_does_harm(
    double: RegistryDouble, logged: Kept, drawn: list[dict[str, Any]], referrers: bool, mounts: str, refresh: bool
) -> None:
    double.reset()
    double.referrers, double.mounts = referrers, mounts
    double.tokens = Tokens(users={"me": PASSWORD}, identity=frozenset({IDENTITY}))
    for image in INDEX.images:
        double.put_blob("up/base", image.layers[0].blob)
    entry = {"username": "<token>", "password": IDENTITY} if refresh else {"username": "me", "password": PASSWORD}
    errors: list[ImagebuildError] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        client = client_for(
            Path(folder),
            docker_config={"auths": {double.host: entry}},
            time=FakeTime(double),
            policy=RetryPolicy(attempts=4),
        )
        stack.callback(client.close)
        double.script.faults.extend(fault_of(double, one) for one in drawn)
        lies = any(one["kind"] == "status" and one["status"] == 201 for one in drawn)
        everything(client, double, errors, lies)
        assert double.incomplete_tags() == []
        assert double.damaged_blobs() == []
        double.script.faults.clear()
        late: list[ImagebuildError] = []
        fresh = client_for(Path(folder), time=FakeTime(double))
        stack.callback(fresh.close)
        everything(fresh, double, late, False)
        assert late == []
    secrets = [PASSWORD, IDENTITY, *double.tokens.issued]
    texts = [text for error in errors for text in shown(error)] + logged.lines
    assert not [secret for secret in secrets for text in texts if secret in text]
