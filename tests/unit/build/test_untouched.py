"""`untouched`: refused when locking, proved of the image's own layers in verify."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuild.build.untouched import untouched_checks
from imagebuild.build.verification import Check
from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Entry, Kind, LayerFacts
from imagebuild.target.lock_types import RootFact
from imagebuild.testing.small_engine import SITE

ROOT = RootFact("engine", f"/{SITE}/engine", "engine", f"/{SITE}/engine-1.0.dist-info", f"/{SITE}")
BASE = Check("verify.base-prefix", True, "")


def layer(*entries: tuple[str, Kind], whiteouts: tuple[str, ...] = (), opaques: tuple[str, ...] = ()) -> LayerFacts:
    digest = Digest("0" * 64)
    found = {path: Entry(path, kind, 0o644, 0, 0, 0) for path, kind in entries}
    return LayerFacts(digest, digest, 0, found, frozenset(whiteouts), frozenset(opaques))


@pytest.mark.parametrize(
    ("facts", "passed"),
    [
        (layer((SITE, Kind.DIRECTORY), (f"{SITE}/engine2/x.py", Kind.FILE)), True),
        (layer((f"{SITE}/engine/envs.py", Kind.FILE)), False),
        (layer((f"{SITE}/engine", Kind.SYMLINK)), False),
        (layer((SITE, Kind.SYMLINK)), False),
        (layer((f"{SITE}/engine-1.0.dist-info/RECORD", Kind.FILE)), False),
        (layer(whiteouts=(f"{SITE}/engine/__pycache__/envs.pyc",)), False),
        (layer(whiteouts=("usr/local",)), False),
        (layer(opaques=(SITE,)), False),
        (layer(whiteouts=(f"{SITE}/other",)), True),
        (None, None),
    ],
)
def test_what_lies_in_or_over_the_package_is_found(facts: LayerFacts | None, passed: bool | None) -> None:
    (check,) = untouched_checks(("engine",), (ROOT,), (layer(), facts), BASE, "linux/amd64")
    assert (check.code, check.passed) == ("verify.untouched", passed)
    assert untouched_checks((), (ROOT,), (facts,), BASE, "linux/amd64") == []


def test_without_the_base_nothing_is_proved() -> None:
    other = Check("verify.base-prefix", False, "")
    (check,) = untouched_checks(("engine",), (ROOT,), (layer(),), other, "linux/amd64")
    assert check.passed is False


def helper_overlay(space: Any) -> None:
    space.write_overlay(changes="  - file: f\n    to: helper/__init__.py\n", files={"f": b"VALUE = 2\n"}, guards="")


def test_another_package_may_change_and_verify_says_so(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    roots = {"engine": {"python": "engine"}, "helper": {"python": "helper"}}
    space.write_target(roots=roots, untouched=["engine"])
    helper_overlay(space)
    assert verb("lock", "tuned", "--complete").code == 0
    reference = verb("build", "tuned", "--json").document["reference"]
    answer = verb("verify", reference, "--target", "tuned", "--json")
    checks = [check for check in answer.document["checks"] if check["code"] == "verify.untouched"]
    assert (answer.code, [check["passed"] for check in checks]) == (0, [True])
    assert "no file of engine is touched" in checks[0]["message"]


def test_locking_refuses_a_change_to_it(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_target(untouched=["engine"])
    answer = verb("lock", "tuned", "--json")
    assert (answer.code, answer.document["code"]) == (1, "lock.touched")
    assert f"/{SITE}/engine/envs.py" in answer.document["details"]["paths"]
    assert not space.lock_path().exists()


def test_a_root_that_is_not_listed_is_no_promise(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_target(untouched=["other"])
    answer = verb("lock", "tuned", "--json")
    assert (answer.code, answer.document["code"]) == (2, "target.unknown-root")


def test_a_lock_without_the_promise_is_stale(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_target(roots={"engine": {"python": "engine"}, "helper": {"python": "helper"}})
    helper_overlay(space)
    assert verb("lock", "tuned").code == 0
    space.write_target(roots={"engine": {"python": "engine"}, "helper": {"python": "helper"}}, untouched=["engine"])
    assert verb("lock", "tuned", "--check", "--json").document["stale"] == ["untouched has changed"]
