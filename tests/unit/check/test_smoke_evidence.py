"""What a smoke test leaves: evidence by its schema, outputs by digest, a statement only where one may be made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from smoke_bench import Bench, UnpackedRunner

from imagebuild.check.smoke import SmokeResult, StepResult, run_smoke
from imagebuild.check.smoke.evidence import Circumstances, load_evidence_document, write_evidence
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import part
from imagebuild.check.smoke.show import evidence_text
from imagebuild.check.verdicts import Verdict
from imagebuild.cli.main import main
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.waiver.evidence import load_evidence

AROUND = Circumstances(1_700_000_000, 1_700_000_060, Digest("1" * 64), "a" * 40, "lab")
SCHEMA = Path(__file__).parents[3] / "docs/reference/smoke-evidence.json"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("evidence"))


def made(request: SmokeRequest, *verdicts: Verdict) -> SmokeResult:
    """A result with one step a verdict."""
    names = ("files", "python", "switch", "engine", "parity", "overlay")
    steps = tuple(
        StepResult(
            name,
            (part(name, verdict, "" if verdict is Verdict.PASSED else "because"),),
            1.5,
            600.0,
            ("launch.py",),
            {"seen": 0.25},
            {"cpu": "x86_64", "accelerators": [{"name": "NVIDIA H200", "architecture": "sm_90", "capability": "9.0"}]},
            {f"{name}/stdout.txt": f"said by {name} <&>\x00".encode()},
        )
        for name, verdict in zip(names, verdicts, strict=False)
    )
    return SmokeResult("tuned", steps, request.complete, "podman")


def test_evidence_of_a_real_run_fits_its_schema_and_its_outputs_are_there(bench: Bench, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    request = bench.request(steps=("files", "python"))
    result = run_smoke(request, UnpackedRunner(tmp_path / "run"))
    path, document = write_evidence(tmp_path / "out", request, result, AROUND)
    assert json.loads(path.read_bytes()) == document
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_bytes())).validate(document)
    assert document["image"]["digest"] == str(request.image.digest)
    assert document["image"]["content_id"] == str(request.lock.result.content_id)
    listed = [output for step in document["steps"] for output in step["outputs"]]
    assert {output["name"] for output in listed} >= {"files/verification.json", "python/answer.json"}
    for output in listed:
        (place,) = (tmp_path / "out" / "outputs").glob(f"sha256-{output['sha256']}.*")
        data = place.read_bytes()
        assert (len(data), Digest.of(data).hex) == (output["size"], output["sha256"])


STATED = [
    ((Verdict.PASSED,) * 6, None, "PASSED"),
    ((Verdict.PASSED, Verdict.FAILED), None, "FAILED"),
    ((Verdict.PASSED,) * 2, ("files", "python"), None),
    ((Verdict.PASSED, Verdict.FAILED), ("files", "python"), "FAILED"),
    ((*(Verdict.PASSED,) * 5, Verdict.NOT_RUN), None, None),
    ((Verdict.FAILED, Verdict.INFRASTRUCTURE), None, None),
    ((Verdict.INVALID,), None, None),
    ((Verdict.NOT_PROVEN,), None, None),
]


@pytest.mark.parametrize(("verdicts", "steps", "stated"), STATED)
def test_only_a_whole_yes_and_a_no_are_stated(
    bench: Bench, tmp_path: Path, verdicts: tuple[Verdict, ...], steps: tuple[str, ...] | None, stated: str | None
) -> None:
    request = bench.request(steps=steps)
    folder = tmp_path / "evidence"
    (folder).mkdir()
    (folder / "statement.json").write_text("of an earlier run")
    write_evidence(folder, request, made(request, *verdicts), AROUND)
    if stated is None:
        assert not (folder / "statement.json").exists()
        return
    (record,) = load_evidence(folder, "evidence").records
    assert (record.check, record.result) == ("smoke", stated)
    assert record.subjects == {request.image.digest}
    assert request.lock.result.content_id in record.configuration
    statement = json.loads((folder / "statement.json").read_bytes())
    evidence = {one["name"]: one["digest"]["sha256"] for one in statement["predicate"]["evidence"]}
    assert evidence["evidence.json"] == Digest.of((folder / "evidence.json").read_bytes()).hex


def test_junit_shows_each_step_by_its_verdict(bench: Bench, tmp_path: Path) -> None:
    request = bench.request(steps=("files", "python", "switch", "engine"))
    verdicts = (Verdict.PASSED, Verdict.FAILED, Verdict.INFRASTRUCTURE, Verdict.NOT_RUN)
    write_evidence(tmp_path, request, made(request, *verdicts), AROUND)
    cases = {one.get("name"): one for one in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    kinds = {name: [child.tag for child in case if child.tag != "system-out"] for name, case in cases.items()}
    assert kinds["files"] == []
    assert (kinds["python"], kinds["switch"], kinds["engine"]) == (["failure"], ["error"], ["skipped"])
    assert kinds["parity"] == ["skipped"]


def test_what_decided_how_it_ran_has_a_digest(bench: Bench, tmp_path: Path) -> None:
    one = bench.request()
    two = replace(one, prompts=((1, 2),))
    documents = [
        write_evidence(tmp_path / name, r, made(r, Verdict.PASSED), AROUND)[1] for name, r in (("a", one), ("b", two))
    ]
    assert documents[0]["settings"] != documents[1]["settings"]


def test_outputs_of_an_earlier_run_go(bench: Bench, tmp_path: Path) -> None:
    request = bench.request()
    write_evidence(tmp_path, request, made(request, Verdict.FAILED, Verdict.PASSED), AROUND)
    write_evidence(tmp_path, request, made(request, Verdict.FAILED), AROUND)
    assert len(list((tmp_path / "outputs").iterdir())) == 1


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["smoke", *words])
    return code, capsys.readouterr().out


def test_evidence_is_shown_with_its_verdict_last(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = bench.request()
    path, _ = write_evidence(tmp_path, request, made(request, Verdict.PASSED, Verdict.INFRASTRUCTURE), AROUND)
    code, text = shown(capsys, "--show", str(path))
    assert code == 3
    assert "1 x NVIDIA H200 9.0" in text
    assert "by podman at lab" in text
    assert str(request.image.digest) in text
    assert text.splitlines()[-1] == "infrastructure: tuned (linux/amd64): python: because"
    code, text = shown(capsys, "--json", "--show", str(path))
    assert json.loads(text)["kind"] == "smoke-evidence"


def test_a_part_of_the_steps_is_said_to_be_one(bench: Bench, tmp_path: Path) -> None:
    request = bench.request(steps=("files",))
    _, document = write_evidence(tmp_path, request, made(request, Verdict.PASSED), AROUND)
    assert document["complete"] is False
    assert document["left_out"]["engine"] == "not selected in this run"
    assert "only files, which is not the whole smoke test" in evidence_text(document)


SHAPED = {"kind": "smoke-evidence", "schemaVersion": 1, "verdict": "passed", "steps": []}


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"kind": "verification"},
        {**SHAPED, "schemaVersion": 2},
        {**SHAPED, "verdict": "fine"},
        {**SHAPED, "verdict": None},
        {**SHAPED, "steps": ["python"]},
        {**SHAPED, "steps": [{"name": "python", "parts": "all"}]},
        {**SHAPED, "image": "sha256:…"},
        {**SHAPED, "hardware": {"accelerators": ["H200"]}},
    ],
)
def test_what_is_no_evidence_is_not_shown(tmp_path: Path, value: Any) -> None:
    (tmp_path / "e.json").write_text(json.dumps(value))
    with pytest.raises(InputError) as caught:
        load_evidence_document(tmp_path / "e.json")
    assert caught.value.code == "check.not-evidence"


def test_unknown_steps_and_missing_targets_are_errors_of_the_caller(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-C", str(bench.space.root), "--cache", str(bench.cache)]
    assert main(["smoke", "tuned", "--step", "pyton", "--runner", "host", *where]) == 2
    assert "did you mean python?" in capsys.readouterr().err
    assert main(["smoke", *where]) == 2


def test_the_verb_leaves_evidence_and_answers_with_it(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the host there is no image: what asks for one is invalid, whatever the host's own packages are."""
    where = ["-C", str(bench.space.root), "--cache", str(bench.cache), "--platform", "linux/amd64", "--json"]
    asked = ["smoke", "tuned", "--runner", "host", "--junit", str(tmp_path / "j.xml")]
    assert main([*asked, "--step", "files", *where]) == 0
    document = json.loads(capsys.readouterr().out)
    folder = bench.space.root / "build" / "smoke" / "tuned" / "amd64"
    assert json.loads((folder / "evidence.json").read_bytes()) == document
    assert (document["verdict"], document["complete"]) == ("passed", False)
    assert not (folder / "statement.json").exists()
    assert (tmp_path / "j.xml").read_bytes() == (folder / "junit.xml").read_bytes()
    assert main([*asked, "--step", "python", *where]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["runner"]) == ("invalid", "host")
    assert main(["smoke", "tuned", "--show", *where]) == 3
    assert json.loads(capsys.readouterr().out) == document


def test_evidence_with_little_in_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.json").write_text(json.dumps({**SHAPED, "steps": [{"seconds": "long"}], "hardware": {}}))
    code, text = shown(capsys, "--show", str(tmp_path / "e.json"))
    assert code == 0
    assert "nothing is known of it" in text


COMMITTED = Path(__file__).parents[3] / "manifests/h200-vllm/evidence/smoke"


def test_the_committed_evidence_of_real_accelerators_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads((COMMITTED / "evidence.json").read_bytes())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_bytes())).validate(document)
    missing = [
        output["name"]
        for step in document["steps"]
        for output in step["outputs"]
        if not list((COMMITTED / "outputs").glob(f"sha256-{output['sha256']}.*"))
    ]
    assert not missing
    statement = json.loads((COMMITTED / "statement.json").read_bytes())
    told = {one["name"]: one["digest"]["sha256"] for one in statement["predicate"]["evidence"]}
    for name in ("evidence.json", "junit.xml"):
        assert told[name] == Digest.of((COMMITTED / name).read_bytes()).hex
    code, text = shown(capsys, "--show", str(COMMITTED / "evidence.json"))
    assert (code, text.splitlines()[-1]) == (0, "passed: h200-vllm (linux/amd64): 9 steps")
    assert "NVIDIA H200 9.0" in text
