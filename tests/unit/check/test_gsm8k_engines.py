"""`gsm8k run` without an endpoint, from the door: a target with a switch, its base and its built image, the host runner."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from imagebuild.check.arms import plan_arm
from imagebuild.check.gsm8k import claimed
from imagebuild.check.images import open_image
from imagebuild.cli.main import main
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

ENGINE = str(Path(__file__).with_name("engine_double.py"))
LINUX = Platform("linux", "amd64")
SWITCH = 'switch: {env: TUNE, default: "0", "on": "1"}\nproof: {log: "tuned branch runs over [0-9]+ ranks"}\n'
Verb = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def space(tmp_path: Path, questions: Path, monkeypatch: pytest.MonkeyPatch) -> SmallWorkspace:
    """Locked and built.  The engine is a program of this machine; what the image's files say of themselves is put beside it."""
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(tmp_path / "cache"))
    made = SmallWorkspace(tmp_path / "space", engine_base())
    site = tmp_path / "site" / "engine-1.0.dist-info"
    command = [sys.executable, ENGINE, "{port}", str(questions)]
    serve = {"engine": "openai", "command": command, "env": {"PYTHONPATH": str(site.parent)}, "ready_deadline": "30s"}
    made.write_target(serve=serve, checks={"gsm8k": {"arms": ["base", "off", "on"], "concurrency": [2]}})
    path = made.write_overlay() / "overlay.yaml"
    path.write_text(path.read_text().replace("changes:", SWITCH + "changes:"))
    for verb in ("lock", "build"):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            assert main([verb, "tuned", "-C", str(made.root)]) == 0, said.getvalue()
    site.mkdir(parents=True)
    return made


@pytest.fixture
def verb(space: SmallWorkspace, questions: Path, eval_python: str) -> Verb:
    def run(*words: str) -> tuple[int, Any, str]:
        out, err = StringIO(), StringIO()
        common = ("--data", str(questions), "--eval-python", eval_python, "--json", "-C", str(space.root))
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["gsm8k", "run", "tuned", *common, *words])
        return code, json.loads(out.getvalue()), err.getvalue()

    return run


def declare(space: SmallWorkspace) -> None:
    """Puts the account of the patched distribution where the engine's Python finds it."""
    account = {"content_id": space.lock()["result"]["content_id"]}
    (space.root.parent / "site" / "engine-1.0.dist-info" / "imagebuild.json").write_text(json.dumps(account))


def test_several_arms_in_one_call(space: SmallWorkspace, verb: Verb) -> None:
    code, found, err = verb("--runner", "host", "--arm", "base", "--churn")
    assert code == 0, err
    assert [one["arm"] for one in found["results"]] == ["base", "base-again"]
    declare(space)
    code, found, err = verb("--runner", "host", "--arm", "off", "--arm", "on")
    assert (found["kind"], [one["verdict"] for one in found["results"]]) == ("gsm8k-runs", ["passed", "passed"]), err
    assert code == 0
    assert "on: passed: " in err
    folder = Path(found["results"][1]["folder"])
    meta = json.loads((folder / "meta_env.json").read_text())
    assert folder == space.root / "build" / "gsm8k" / "tuned" / "on"
    assert meta["switch_proof"][0]["overlay"] == "tune"
    assert meta["content_id"] == space.lock()["result"]["content_id"]
    assert (meta["image_digest"], meta["identity"]) == (None, "installed files; no image was started")
    stated = (folder / "predicate.json").read_bytes()
    assert json.loads(stated)["result"] == "PASSED"
    assert verb("--runner", "host", "--arm", "on")[0] == 0
    assert (folder / "predicate.json").read_bytes() == stated
    # the base of before is not base any more: what is installed is patched
    code, found, _ = verb("--runner", "host", "--arm", "base", "--limit", "3", "--output", str(space.root / "other"))
    assert (code, found["verdict"]) == (3, "invalid")
    assert "a server of another image answers" in found["reason"]


def test_one_arm_that_fails_does_not_keep_the_others_from_their_turn(space: SmallWorkspace, verb: Verb) -> None:
    declare(space)
    (space.root / "build" / "base").rename(space.root / "build" / "gone")
    code, found, err = verb("--runner", "host", "--arm", "base", "--arm", "off")
    assert code == 2, err
    assert {one["arm"]: one["kind"] for one in found["results"]} == {"base": "error", "off": "gsm8k-run"}


def test_no_engine_is_started_for_a_run_that_another_call_is_at_work_on(space: SmallWorkspace, verb: Verb) -> None:
    folder = space.root / "build" / "gsm8k" / "tuned" / "base"
    with claimed(folder):
        code, found, _ = verb("--runner", "host", "--arm", "base")
    assert (code, found["code"]) == (1, "check.run-in-progress")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--endpoint", "http://127.0.0.1:1"), "check.one-arm"),
        (("--endpoint", "http://127.0.0.1:1", "--arm", "on", "--arm", "off"), "check.one-arm"),
        (("--endpoint", "http://127.0.0.1:1", "--arm", "on", "--runner", "host"), "cli.usage"),
        (("--runner", "host", "--arm", "third"), "check.bad-arm"),
        (("--runner", "none"), "check.unknown-runner"),
        (("--runner", "host", "--concurrency", "0"), "check.bad-count"),
    ],
)
def test_what_is_asked_wrongly(verb: Verb, words: tuple[str, ...], code: str) -> None:
    exit_code, found, _ = verb(*words)
    assert (exit_code, found["code"]) == (2, code)


def test_a_target_must_say_how_its_engine_starts(space: SmallWorkspace, verb: Verb) -> None:
    space.write_target()
    assert verb("--runner", "host")[1]["code"] == "check.no-serve"


def test_an_image_that_is_not_built_is_a_clear_no(space: SmallWorkspace, verb: Verb) -> None:
    (space.root / "build" / "tuned").rename(space.root / "build" / "gone")
    code, found, _ = verb("--runner", "host", "--arm", "on")
    assert (code, found["code"]) == (1, "check.not-built")


def test_what_each_arm_must_find_inside(space: SmallWorkspace) -> None:
    from imagebuild.build.opening import Opener
    from imagebuild.target.lock import load_lock
    from imagebuild.target.workspace import Workspace

    workspace = Workspace.find(space.root, space.root)
    target = workspace.target("tuned")
    overlays, lock, opener = workspace.series(target), load_lock(space.lock_path()), Opener(space.root)
    assert lock is not None

    def planned(name: str, **more: bool) -> Any:
        return plan_arm(
            name, overlays, lock, LINUX,
            lambda: open_image(target.base, LINUX, opener),
            lambda: open_image(f"oci:build/tuned@{lock.result.digest}", LINUX, opener, base=target.base),
            **more,
        )  # fmt: skip

    base, on = planned("base"), planned("on")
    envs = "/usr/local/lib/python3.12/dist-packages/engine/envs.py"
    extra = "/usr/local/lib/python3.12/dist-packages/engine/extra.py"
    assert (base.expected.content_id, on.expected.content_id) == (None, lock.result.content_id)
    assert base.expected.files[extra] == "absent"
    assert on.expected.files[extra].startswith("sha256:")
    assert base.expected.files[envs] != on.expected.files[envs]
    assert not [path for path in on.expected.files if path.endswith((".pyc", "imagebuild.json"))]
    assert (base.unset, base.switches, on.switches) == (("TUNE",), {}, {"TUNE": "1"})
    assert planned("off").proofs == ()
    assert planned("off").switches == {"TUNE": "0"}
    assert on.proofs[0].log == "tuned branch runs over [0-9]+ ranks"
    assert planned("on", installed=True).expected.files == {}
    overlays = ()
    with pytest.raises(InputError) as caught:
        planned("on")
    assert caught.value.code == "check.no-switch"
