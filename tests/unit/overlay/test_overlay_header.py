"""A patch's DEP-3 header against overlay.yaml."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from imagebuild.errors import InputError, SeveralErrors
from imagebuild.overlay.document import EnvChange, Origin, Overlay
from imagebuild.overlay.header import check_header

OVERLAY = Overlay(
    "tep",
    "d",
    (EnvChange({"A": "b"}),),
    Path("/w/overlays/tep"),
    origin=Origin("backport", "https://x.org/pull/1", "064565cf1e"),
    author="A B <a@b.org>",
    forwarded="https://x.org/pull/1",
    upstream_status="Submitted",
    last_update=date(2026, 11, 30),
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Description": "anything", "Subject": "anything", "Bug": "https://x.org/2"},
        {"Origin": "backport, https://x.org/pull/1"},
        {"Origin": "https://x.org/pull/1"},
        {"Origin": "backport, commit:064565cf1e99aa"},
        {"Origin": "backport, commit: 064565"},
        {"origin": "Backport"},
        {"Author": "A B  <a@b.org>", "From": "A B <a@b.org>"},
        {"Forwarded": "https://x.org/pull/1"},
        {"Forwarded": "yes"},
        {"Upstream-Status": "Submitted [https://x.org/pull/1]"},
        {"Last-Update": "2026-11-30"},
        {"Applied-Upstream": "v2"},
    ],
)
def test_headers_that_agree_or_speak_of_something_else(fields: dict[str, str]) -> None:
    check_header(OVERLAY, "a.patch", fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"Origin": "upstream, https://x.org/pull/1"}, "backport"),
        ({"Origin": "backport, https://x.org/pull/2"}, "https://x.org/pull/1"),
        ({"Origin": "backport, commit:ffff"}, "commit:064565cf1e"),
        ({"From": "C D <c@d.org>"}, "A B <a@b.org>"),
        ({"Forwarded": "not-needed"}, "https://x.org/pull/1"),
        ({"Forwarded": "no"}, "https://x.org/pull/1"),
        ({"Upstream-Status": "Pending"}, "Submitted"),
        ({"last-update": "2026-12-01"}, "2026-11-30"),
    ],
)
def test_headers_that_contradict(fields: dict[str, str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        check_header(OVERLAY, "patches/a.patch", fields)
    assert caught.value.code == "overlay.header-disagrees"
    assert caught.value.expected == expected
    assert "overlays/tep/patches/a.patch" in caught.value.message


def test_every_contradiction_is_told() -> None:
    with pytest.raises(SeveralErrors) as caught:
        check_header(OVERLAY, "a.patch", {"From": "x", "Upstream-Status": "Denied"})
    assert [error.details["field"] for error in caught.value.errors] == ["From", "Upstream-Status"]


def test_what_overlay_yaml_does_not_say_cannot_be_contradicted() -> None:
    silent = Overlay("tep", "d", (EnvChange({"A": "b"}),), Path("/w/tep"))
    check_header(
        silent, "a.patch", {"Origin": "upstream, x", "From": "x", "Forwarded": "no", "Upstream-Status": "Denied"}
    )
