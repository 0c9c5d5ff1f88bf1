"""Unsigned result files, and the waiver that a policy may ask for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release_space import Space, result, steps, write_result, write_signed

from imagebuild.content.digest import Digest

Verb = Callable[..., Any]
GSM8K = {"gsm8k": {"threshold": 0.9}}
QUESTIONS = 1319


def artefact(
    folder: Path, right: int, image: str | None, questions: int = QUESTIONS, claimed: float | None = None
) -> None:
    """A run as InferenceX keeps it: lm-eval's result and samples, and meta_env.json."""
    folder.mkdir(parents=True)
    score = right / questions if claimed is None else claimed
    results = {
        "model_name": "engine",
        "results": {"gsm8k": {"exact_match,strict-match": score, "exact_match,flexible-extract": score}},
        "n-samples": {"gsm8k": {"original": QUESTIONS, "effective": questions}},
    }
    (folder / "results_2026-11-30.json").write_text(json.dumps(results))
    lines = [
        json.dumps({
            "doc_id": n, "filter": name, "exact_match": float(n < right), "resps": [["7"]], "filtered_resps": ["7"],
            "doc_hash": "d", "prompt_hash": "p", "target_hash": "t",
        })
        for name in ("strict-match", "flexible-extract")
        for n in range(questions)
    ]  # fmt: skip
    (folder / "samples_gsm8k_2026-11-30.jsonl").write_text("\n".join(lines) + "\n")
    meta = {"framework": "engine", **({"image": image} if image else {})}
    (folder / "meta_env.json").write_text(json.dumps(meta))


@pytest.fixture
def asked(make_space: Callable[..., Space]) -> Space:
    space = make_space(checks=GSM8K)
    space.policy("unsigned_evidence: allow\n")
    return space


def served(space: Space) -> str:
    return f"docker.io/example/engine:v1@{space.images()['linux/amd64']}"


def bring(space: Space, verb: Verb, *more: str) -> Any:
    return verb("release", "import-evidence", str(space.root.parent / "artefact"), "--target", "tuned", "--json", *more)


def test_results_that_nobody_signed_count_where_the_policy_says_so_and_stay_marked(asked: Space, verb: Verb) -> None:
    artefact(asked.root.parent / "artefact" / "eval", 1300, served(asked))
    ran = bring(asked, verb)
    assert ran.code == 0, ran.err
    (entry,) = ran.document["entries"]
    assert (entry["check"], entry["verdict"], entry["signed"], entry["signed_by"]) == ("gsm8k", "passed", False, [])
    assert {name.rpartition("/")[2] for name in entry["files"]} == {
        "results_2026-11-30.json", "samples_gsm8k_2026-11-30.jsonl", "meta_env.json",
    }  # fmt: skip
    before = asked.files()
    assert bring(asked, verb).code == 0
    assert asked.files() == before
    ran = verb("release", "tuned", "--push", *asked.key, "--json")
    assert (ran.code, steps(ran.document)["gsm8k"]) == (0, "imported"), ran.err
    reason = next(item["reason"] for item in ran.document["steps"] if item["step"] == "gsm8k")
    assert "UNSIGNED" in reason
    (entry,) = asked.release_file()["predicate"]["evidence"]
    assert (entry["check"], entry["signed"]) == ("gsm8k", False)

    policy = asked.root / "policy.yaml"
    policy.write_text(policy.read_text().replace("require: [", "require: [{predicate: gsm8k}, "))
    image = f"{asked.repository}:v1-tuned"
    ran = verb("verify", image, "--target", "tuned", "--policy", "policy.yaml")
    assert ran.code == 0, ran.out
    assert "unsigned evidence that the release names" in ran.out
    policy.write_text(policy.read_text().replace("unsigned_evidence: allow", "unsigned_evidence: refuse"))
    assert verb("verify", image, "--target", "tuned", "--policy", "policy.yaml").code == 1
    ran = verb("release", "tuned", "--push", *asked.key, "--json")
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")


@pytest.mark.parametrize(
    ("what", "code", "exit_code"),
    [
        ("refused by the policy", "release.unsigned-evidence", 1),
        ("another image", "release.other-image", 1),
        ("no digest", "release.no-image", 2),
        ("not every question", "release.run-does-not-count", 1),
        ("a score that its samples deny", "release.run-does-not-count", 1),
    ],
)
def test_what_result_files_may_not_be(asked: Space, verb: Verb, what: str, code: str, exit_code: int) -> None:
    folder = asked.root.parent / "artefact"
    if what == "refused by the policy":
        asked.policy()
    if what == "not every question":
        artefact(folder, 100, served(asked), questions=100)
    elif what == "a score that its samples deny":
        artefact(folder, 1000, served(asked), claimed=0.99)
    else:
        image = {"another image": f"x/y@{asked.small.base.digest}", "no digest": "x/y:latest"}.get(what, served(asked))
        artefact(folder, 1300, image)
    ran = bring(asked, verb)
    assert (ran.code, ran.document["code"]) == (exit_code, code)
    assert not (asked.small.folder() / "evidence").exists()
    if what == "no digest":
        ran = bring(asked, verb, "--image", str(asked.images()["linux/amd64"]))
        assert ran.code == 0, ran.err
        statement = json.loads(
            (asked.small.folder() / "evidence" / "imported" / ran.document["entries"][0]["file"]).read_bytes()
        )
        assert statement["predicate"]["imageKnownBy"] == "said when it was imported"


def test_a_score_below_the_threshold_is_a_no(asked: Space, verb: Verb) -> None:
    artefact(asked.root.parent / "artefact", 1180, served(asked))
    assert bring(asked, verb).document["entries"][0]["verdict"] == "failed"
    ran = verb("release", "tuned", *asked.key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "release.check-failed")


def test_runs_that_a_signed_statement_names_are_taken_with_it(asked: Space, verb: Verb) -> None:
    """A gate's folder: the arms' files, the base's own among them, and one signed statement that names them all."""
    asked.policy()
    top = asked.root.parent / "artefact"
    artefact(top / "base", 1290, f"x/y@{asked.small.base.digest}")
    artefact(top / "on", 1300, served(asked))
    files = {path: Digest.of(path.read_bytes()) for path in sorted(top.rglob("*")) if path.is_file()}
    statement = json.loads(result("gsm8k", "non-inferior", asked.images()["linux/amd64"]))
    statement["predicate"]["evidence"] = [
        {"name": str(path.relative_to(top)), "digest": {"sha256": digest.hex}} for path, digest in files.items()
    ]
    write_signed(top, json.dumps(statement).encode(), asked.tester)
    ran = bring(asked, verb)
    assert ran.code == 0, ran.err
    (entry,) = ran.document["entries"]
    assert (entry["verdict"], entry["signed"], len(entry["files"])) == ("non-inferior", True, 6)
    assert any(name.endswith("/base-meta_env.json") for name in entry["files"])
    ran = verb("release", "tuned", "--push", *asked.key, "--json")
    assert (ran.code, steps(ran.document)["gsm8k"]) == (0, "imported"), ran.err


WAIVER = """schema: 1
number: 77
title: Tune the engine
targets: [tuned]
why_unmodified_cannot_run: {text: The scheduler of the unmodified image stops at step 17., evidence: ["KeyError: 17"]}
upstream: [UPSTREAM]
removal_plan: {condition: when an image carries the upstream change, delete: [the switch], expires: 2099-01-01}
zh: {title: 调整引擎, why: 未修改镜像的调度器在第 17 步停止。, removal_plan: 镜像包含上游修改之后}
"""
LINK = "{url: https://github.com/engine-project/engine/pull/12, state: open}"
REQUIRED = "waiver: {required: true, expired: EXPIRED}\n"


@pytest.fixture
def waived(make_space: Callable[..., Space], verb: Verb) -> Callable[..., Space]:
    def make(link: str = LINK, *, required: bool = True, last: str = "2099-01-01", expired: str = "refuse") -> Space:
        space = make_space(waiver=77)
        folder = space.root / "waivers"
        folder.mkdir()
        text = WAIVER.replace("UPSTREAM", link).replace("2099-01-01", last)
        (folder / "77.yaml").write_text(text, encoding="utf-8")
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"sha256": space.small.base.digest.hex}}],
            "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
            "predicate": {"result": "FAILED", "check": "smoke", "configuration": []},
        }
        write_result(space.small.folder() / "evidence", json.dumps(statement).encode(), "base.json")
        assert verb("waiver", "render", "77").code == 0
        space.policy(REQUIRED.replace("EXPIRED", expired) if required else "")
        return space

    return make


def test_a_waiver_that_passes_is_named_in_the_release(waived: Callable[..., Space], verb: Verb) -> None:
    space = waived()
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert ran.code == 0, ran.err
    assert space.release_file()["predicate"]["waiver"] == {"number": 77, "expires": "2099-01-01"}
    ran = verb("verify", f"{space.repository}:v1-tuned", "--target", "tuned", "--policy", "policy.yaml")
    assert ran.code == 0, ran.out


def test_a_page_names_the_release_that_speaks_of_its_image_and_no_older_one(
    waived: Callable[..., Space], verb: Verb
) -> None:
    space = waived()
    pages = [space.root / "waivers" / name for name in ("77.md", "77_zh.md")]
    name = "`manifests/tuned/release.dsse.json`"
    assert not [page for page in pages if name in page.read_text(encoding="utf-8")]
    assert verb("release", "tuned", *space.key).code == 0
    assert verb("waiver", "render", "77").code == 0
    assert [page for page in pages if name in page.read_text(encoding="utf-8")] == pages
    again = verb("release", "tuned", *space.key, "--json")
    assert (again.code, again.document["changed"]) == (0, False), "rendering the page makes no other release"
    space.target(waiver=77, env={"ADDED": "1"})
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb("waiver", "render", "77").code == 0
    assert not [page for page in pages if name in page.read_text(encoding="utf-8")]


def test_a_refused_waiver_stops_a_release_that_needs_one_and_is_left_out_of_any_other(
    waived: Callable[..., Space], verb: Verb
) -> None:
    space = waived(link="")
    space.registry.log.clear()
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "release.waiver-refused")
    assert [f["code"] for f in ran.document["details"]["findings"] if f["severity"] == "blocking"]
    assert len(ran.document["details"]["ways_out"]) == 3
    assert space.writes() == []
    plan = verb("release", "tuned", "--push", *space.key, "--dry-run", "--json").document
    waiver = next(item for item in plan["steps"] if item["step"] == "waiver check")
    assert "as things stand it stops here" in waiver["reason"]
    space.policy()
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert ran.code == 0, ran.err
    assert "does not pass" in ran.document["warnings"][0]
    assert space.release_file()["predicate"]["waiver"] is None


def test_a_waiver_of_another_target_is_none(waived: Callable[..., Space], verb: Verb) -> None:
    """Whatever it says of the other image, and however well it passes."""
    space = waived()
    other = space.small.folder().with_name("other")
    shutil.copytree(space.small.folder(), other)
    (other / "target.yaml").write_text((other / "target.yaml").read_text().replace('"tuned"', '"other"'))
    assert verb("lock", "other", "--complete").code == 0
    page = space.root / "waivers" / "77.yaml"
    page.write_text(page.read_text(encoding="utf-8").replace("targets: [tuned]", "targets: [other]"), encoding="utf-8")
    assert verb("waiver", "render", "77").code == 0
    assert verb("waiver", "check", "77").code == 0
    ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "release.waiver-of-others")
    space.policy()
    ran = verb("release", "tuned", *space.key, "--json")
    assert ran.code == 0, ran.err
    assert "not tuned" in ran.document["warnings"][0]
    assert space.release_file()["predicate"]["waiver"] is None


@pytest.mark.parametrize(("expired", "code"), [("refuse", 1), ("warn", 0)])
def test_an_expired_waiver_is_the_policys_matter(
    waived: Callable[..., Space], verb: Verb, expired: str, code: int
) -> None:
    space = waived(last="2020-01-01", expired=expired)
    ran = verb("release", "tuned", *space.key, "--json")
    assert ran.code == code, ran.err
    assert ran.document.get("code") == ("release.waiver-expired" if code else None)


def test_a_policy_that_asks_for_a_waiver_refuses_a_target_without_one(space: Space, verb: Verb) -> None:
    space.policy("waiver: {required: true}\n")
    ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "release.no-waiver")
