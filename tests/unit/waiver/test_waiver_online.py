"""`waiver check --online`: what the code host says of upstream links, and what happens when it says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiver_space import LINK, write_result

from imagebuild.errors import InputError
from imagebuild.registry.open import make_client
from imagebuild.registry.secret import Secret
from imagebuild.registry.settings import RegistryOptions
from imagebuild.registry.web import WebReader
from imagebuild.testing.code_host import CodeHostDouble
from imagebuild.testing.small_engine import SmallWorkspace

Make = Callable[..., SmallWorkspace]
Verb = Callable[..., Any]
PULL = "/repos/engine-project/engine/pulls/12"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[CodeHostDouble]:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    with CodeHostDouble() as double:
        monkeypatch.setenv("IMAGEBUILD_GITHUB_API", double.url)
        yield double


@pytest.fixture
def passing(waived: Make) -> SmallWorkspace:
    """A waiver with which nothing is wrong: the base fails."""
    space = waived()
    write_result(space, space.lock()["inputs"]["base"]["digest"], "FAILED", "base-smoke")
    return space


def codes(document: dict[str, Any]) -> dict[str, str]:
    (waiver,) = document["waivers"]
    return {f["code"]: f["severity"] for f in waiver["findings"] if f["code"].startswith("upstream.")}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"state": "open", "merged": False, "merged_at": None, "draft": False}, {"upstream.open": "note"}),
        (
            {"state": "open", "draft": True},
            {"upstream.open": "note", "upstream.state-differs": "note"},
        ),
        (
            {"state": "closed", "merged": True, "merged_at": "2026-11-01T00:00:00Z"},
            {"upstream.merged": "warning", "upstream.state-differs": "note"},
        ),
        (
            {"state": "closed", "merged": False, "merged_at": None},
            {"upstream.closed": "warning", "upstream.state-differs": "note"},
        ),
    ],
)
def test_what_the_host_says_becomes_a_finding(
    passing: SmallWorkspace, host: CodeHostDouble, verb: Verb, answer: Any, found: dict[str, str]
) -> None:
    host.answers[PULL] = (200, answer)
    ran = verb("waiver", "check", "77", "--online", "--json")
    assert (ran.code, ran.document["passed"], codes(ran.document)) == (0, True, found), ran.err
    assert host.asked == [(PULL, None)], "each link once"
    offline = verb("waiver", "check", "77", "--json")
    assert (offline.code, codes(offline.document), len(host.asked)) == (0, {}, 1)


def test_merged_means_remove_me_and_blocks_under_strict(
    passing: SmallWorkspace, host: CodeHostDouble, verb: Verb
) -> None:
    host.answers[PULL] = (200, {"state": "closed", "merged_at": "2026-11-01T00:00:00Z"})
    assert f"remove me: {LINK} is merged" in verb("waiver", "check", "77", "--online").out
    ran = verb("waiver", "check", "77", "--online", "--strict", "--json")
    assert (ran.code, codes(ran.document)["upstream.merged"]) == (1, "blocking")


LIMIT = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1790000000"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((403, {"message": "API rate limit exceeded"}, LIMIT), "used up until 2026-09-21T14:13:20Z"),
        ((429, {}, {"Retry-After": "3600"}), "rate limit is used up"),
        ((403, {"message": "blocked"}), "the host answers 403"),
        ((401, {"message": "Bad credentials"}), "the host answers 401"),
        ((500, b"oops"), "the host answers 500"),
        ((200, b"<html>"), "cannot be understood"),
        ((200, {"state": "sideways"}), "cannot be understood"),
        ((200, []), "cannot be understood"),
        ((200, b"[" * 3_000_000), "cannot be understood"),
        ((200, b" " * 5_000_000), "too large"),
        ((302, b"", {"Location": "ftp://elsewhere/"}), "not followed"),
    ],
)
def test_what_could_not_be_found_out_is_exit_3_and_never_a_pass(
    passing: SmallWorkspace, host: CodeHostDouble, verb: Verb, answer: Any, words: str
) -> None:
    host.answers[PULL] = answer
    ran = verb("waiver", "check", "77", "--online", "--json")
    assert (ran.code, ran.document["passed"], codes(ran.document)) == (3, False, {"upstream.unknown": "warning"})
    assert words in ran.document["waivers"][0]["unknown"][0]
    ran = verb("waiver", "check", "77", "--online")
    assert ran.out.rstrip().endswith("could not find out (1 upstream links)")


def test_a_host_that_is_not_there_is_exit_3(
    passing: SmallWorkspace, host: CodeHostDouble, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEBUILD_GITHUB_API", "http://127.0.0.1:1")
    ran = verb("waiver", "check", "77", "--online", "--json")
    assert (ran.code, codes(ran.document)) == (3, {"upstream.unknown": "warning"})


def test_what_blocks_blocks_whether_or_not_the_host_answers(waived: Make, host: CodeHostDouble, verb: Verb) -> None:
    space = waived()
    write_result(space, space.lock()["inputs"]["base"]["digest"], "PASSED", "base-smoke")
    host.answers[PULL] = (500, b"")
    assert verb("waiver", "check", "77", "--online").code == 1


def test_a_link_that_leads_nowhere_is_told(passing: SmallWorkspace, host: CodeHostDouble, verb: Verb) -> None:
    ran = verb("waiver", "check", "77", "--online", "--json")
    assert (ran.code, codes(ran.document)["upstream.missing"]) == (0, "warning")


def test_pages_of_others_are_looked_up_too(tmp_path: Path, host: CodeHostDouble, verb: Verb) -> None:
    page = tmp_path / "12.md"
    page.write_text(
        "# Waiver for PR #12\n\n## What is patched\n\n| path | upstream |\n| --- | --- |\n"
        "| `a/b.py` | https://github.com/o/r/issues/3 |\n\n## Why the unmodified image cannot run\n\nIt stops with KeyError.\n\n"
        "## Upstream links\n\n- https://github.com/o/r/issues/3\n- https://gitlab.com/o/r/-/merge_requests/4\n\n"
        "## Removal plan\n\nOnce merged, delete a/b.py and this waiver (12.md).\n"
    )
    host.answers["/repos/o/r/issues/3"] = (
        200,
        {"state": "closed", "pull_request": {"merged_at": "2026-01-01T00:00:00Z"}},
    )
    ran = verb("waiver", "check", str(page), "--online", "--json")
    assert set(codes(ran.document)) == {"upstream.merged", "upstream.unknown"}
    assert [path for path, _ in host.asked] == ["/repos/o/r/issues/3"]
    assert "no host that can be asked" in ran.document["waivers"][0]["unknown"][0]


def test_the_token_goes_to_the_host_alone_and_is_shown_nowhere(
    passing: SmallWorkspace, host: CodeHostDouble, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghs_verysecret")
    with CodeHostDouble() as other:
        other.answers["/elsewhere"] = (200, {"state": "open"})
        host.answers[PULL] = (302, b"", {"Location": f"{other.url}/elsewhere"})
        ran = verb("waiver", "check", "77", "--online", "--json", "-v")
        assert other.asked == [("/elsewhere", None)]
    assert host.asked == [(PULL, "Bearer ghs_verysecret")]
    assert ran.code == 0
    host.answers[PULL] = (401, {"message": "token ghs_verysecret is bad"})
    again = verb("waiver", "check", "77", "--online", "--json", "-v")
    assert "verysecret" not in ran.out + ran.err + again.out + again.err


def test_no_token_over_plain_http_to_another_machine() -> None:
    transport = make_client(RegistryOptions()).transport
    with pytest.raises(InputError) as caught:
        WebReader(transport, "http://api.example.com", Secret("x"))
    assert caught.value.code == "registry.bad-address"
    WebReader(transport, "http://api.example.com")
    with pytest.raises(InputError):
        WebReader(transport, "ftp://api.example.com")
