"""overlay.yaml: every kind of change as a value, and what is wrong with its place in the file."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference
from imagebuild.overlay.document import (
    BlobChange,
    DeleteChange,
    EditChange,
    EnvChange,
    FileChange,
    Guard,
    Origin,
    Overlay,
    PatchChange,
    Proof,
    StageChange,
    Switch,
    SymlinkChange,
    WheelChange,
    guards_for,
    load_overlay,
)

A, B = Digest("a" * 64), Digest("b" * 64)
AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")

WHOLE = f"""\
schema: 1
name: tep
description: |
  one line

  then why
origin: {{kind: backport, url: https://github.com/x/y/pull/1, commit: 064565cf1e}}
author: A B <a@b.org>
forwarded: no
upstream_status: Pending
last_update: 2026-11-30
numerics: reordered
license: Apache-2.0
switch: {{env: VLLM_X, default: "0", on: "1"}}
proof: {{log: "TEP .* on"}}
fixes: [CVE-2026-1234]
changes:
  - patch: patches/a.patch
  - file: files/t.py
    to: vllm/models/t.py
  - edit: {{path: vllm/envs.py, find: "a", replace: ""}}
  - delete: {{path: vllm/old.py}}
  - delete: {{glob: aiter/jit/module_*.so, count: 3}}
  - symlink: {{path: vllm/l, to: ../x}}
  - wheel: {{name: ai-dynamo, version: 1.6.1, sha256: {{linux/arm64: {A}}}}}
  - blob: {{path: vllm/b.so, url: https://x.org/b.so, sha256: {A}, size: 5, elf: x86_64}}
  - stage:
      dockerfile: Dockerfiles/aiter.Dockerfile
      args: {{GPU_ARCHS: gfx950}}
      out: {{/out/module.so: aiter/jit/module.so}}
      reproducible: true
      artifact: ghcr.io/x/y@{A}
  - env: {{NAME: value, EMPTY: ""}}
guards:
  vllm/envs.py: {{preimage: {A}, preimage_git: 064565cf1e, postimage: {B}, mode: "0644"}}
  vllm/models/t.py: {{preimage: absent, postimage: {A}}}
  vllm/old.py: {{preimage: [{A}, {B}], postimage: absent}}
  vllm/p.py: {{linux/arm64: {{preimage: {A}, postimage: {B}}}}}
"""


def write(folder: Path, text: str, name: str = "tep") -> Path:
    place = folder / name
    for file in ("patches/a.patch", "files/t.py", "overlay.yaml"):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(text if file == "overlay.yaml" else "x\n")
    return place


def faults(folder: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(ImagebuildError) as caught:
        load_overlay(folder)
    every = caught.value.errors if isinstance(caught.value, SeveralErrors) else (caught.value,)
    return [(error.code, error.details["line"], error.details["key"]) for error in every]


def test_a_whole_overlay_becomes_a_value(tmp_path: Path) -> None:
    folder = write(tmp_path, WHOLE)
    overlay = load_overlay(folder)
    assert overlay.changes == (
        PatchChange("patches/a.patch"),
        FileChange("files/t.py", "vllm/models/t.py"),
        EditChange("vllm/envs.py", "a", ""),
        DeleteChange("vllm/old.py"),
        DeleteChange(glob="aiter/jit/module_*.so", count=3),
        SymlinkChange("vllm/l", "../x"),
        WheelChange("ai-dynamo", "1.6.1", {ARM64: A}),
        BlobChange("vllm/b.so", A, url="https://x.org/b.so", size=5, elf="x86_64"),
        StageChange(
            "Dockerfiles/aiter.Dockerfile",
            {"/out/module.so": "aiter/jit/module.so"},
            {"GPU_ARCHS": "gfx950"},
            "none",
            True,
            overlay.changes[8].artifact,  # type: ignore[union-attr]
        ),
        EnvChange({"NAME": "value", "EMPTY": ""}),
    )
    stage = overlay.changes[8]
    assert isinstance(stage, StageChange)
    assert isinstance(stage.artifact, DigestReference)
    assert stage.artifact.digest == A
    assert overlay.name == "tep"
    assert overlay.folder == folder
    assert overlay.description.startswith("one line\n")
    assert overlay.origin == Origin("backport", "https://github.com/x/y/pull/1", "064565cf1e")
    assert overlay.forwarded == "no"
    assert overlay.last_update == date(2026, 11, 30)
    assert overlay.switch == Switch("VLLM_X", "0", "1")
    assert overlay.proof == Proof(log="TEP .* on")
    assert overlay.fixes == ("CVE-2026-1234",)
    assert list(overlay.guards) == ["vllm/envs.py", "vllm/models/t.py", "vllm/old.py", "vllm/p.py"]
    assert overlay.guards["vllm/envs.py"] == Guard((A,), B, "064565cf1e", None, 0o644)
    assert overlay.guards["vllm/models/t.py"] == Guard((None,), A)
    assert overlay.guards["vllm/old.py"] == Guard((A, B), None)


def test_guards_of_one_platform_leave_out_what_is_guarded_for_others(tmp_path: Path) -> None:
    overlay = load_overlay(write(tmp_path, WHOLE))
    assert "vllm/p.py" not in guards_for(overlay, AMD64)
    assert guards_for(overlay, ARM64)["vllm/p.py"] == Guard((A,), B)
    assert guards_for(overlay, AMD64)["vllm/envs.py"] == guards_for(overlay, ARM64)["vllm/envs.py"]


def test_a_guard_is_written_back_as_it_stands() -> None:
    assert Guard((A, None), B, "abcd", "ef01", 0o755).to_json() == {
        "preimage": [str(A), "absent"],
        "preimage_git": "abcd",
        "postimage": str(B),
        "postimage_git": "ef01",
        "mode": "0755",
    }
    assert Guard((A,), None).to_json() == {"preimage": str(A), "postimage": "absent"}


SMALL = "schema: 1\nname: tep\ndescription: d\nchanges:\n  - env: {A: b}\n"


def test_the_least_overlay(tmp_path: Path) -> None:
    overlay = load_overlay(write(tmp_path, SMALL))
    assert overlay == Overlay("tep", "d", (EnvChange({"A": "b"}),), tmp_path / "tep")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SMALL.replace("name: tep", "name: pet"), [("overlay.name-mismatch", 2, "name")]),
        (SMALL + "  - patch: patches/no.patch\n", [("overlay.file-missing", 6, "changes[1].patch")]),
        (SMALL + "  - file: patches\n    to: vllm/x\n", [("overlay.file-missing", 6, "changes[1].file")]),
        (
            SMALL + f"  - blob: {{path: a/b, file: no, sha256: {A}}}\n",
            [("overlay.file-missing", 6, "changes[1].blob.file")],
        ),
        (SMALL + "proof: {log: x}\n", [("overlay.bad-proof", 6, "proof")]),
        (SMALL + "proof: {log: x}\nswich: {}\n", [("schema.unknown-key", 7, "swich")]),
        (SMALL + 'proof: {log: "("}\nswitch: {env: X, default: "0", on: "1"}\n', [("overlay.bad-proof", 6, "proof.log")]),
        (SMALL + 'switch: {env: X, default: "1", on: "1"}\n', [("overlay.bad-switch", 6, "switch.on")]),
        (SMALL + "  - env: {A: c}\n", [("overlay.env-twice", 6, "changes[1].env.A")]),
        (
            SMALL + "  - symlink: {path: v/x, to: y}\n  - file: files/t.py\n    to: v/x\n",
            [("overlay.made-twice", 7, "changes[2]")],
        ),
        (SMALL + "guards:\n  vllm/x:\n    preimage: absent\n    postimage: absent\n", [("overlay.bad-guard", 9, "guards.vllm/x.postimage")]),
        (SMALL + "  - delete: {path: vllm/../x}\n", [("overlay.bad-path", 6, "changes[1].delete.path")]),
        (SMALL + "  - delete: {glob: vllm/.wh.*, count: 1}\n", [("overlay.bad-path", 6, "changes[1].delete.glob")]),
        (SMALL + "  - edit: {path: vllm/x, find: a, replace: a}\n", [("overlay.empty-edit", 6, "changes[1].edit")]),
        (SMALL + "last_update: 2026-02-30\n", [("overlay.bad-date", 6, "last_update")]),
        (SMALL + "nmae: x\nnumeric: y\n", [("schema.unknown-key", 6, "nmae"), ("schema.unknown-key", 7, "numeric")]),
        (SMALL + "forwarded: yes\n", [("schema.bad-value", 6, "forwarded")]),
    ],
)  # fmt: skip
def test_each_fault_has_its_line_and_key(tmp_path: Path, text: str, expected: list[tuple[str, int, str]]) -> None:
    assert faults(write(tmp_path, text)) == expected


def test_all_faults_are_told_at_once_contradictions_too(tmp_path: Path) -> None:
    text = SMALL.replace("name: tep", "name: pet") + "  - patch: no.patch\n  - env: {A: c}\nauthr: x\n"
    assert [code for code, _, _ in faults(write(tmp_path, text))] == [
        "overlay.name-mismatch",
        "overlay.file-missing",
        "overlay.env-twice",
        "schema.unknown-key",
    ]


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_followed(tmp_path: Path) -> None:
    folder = write(tmp_path, SMALL + "  - patch: p.patch\n")
    (tmp_path / "outside").write_text("x")
    (folder / "p.patch").symlink_to("../outside")
    assert faults(folder) == [("overlay.file-outside", 6, "changes[1].patch")]
    (folder / "p.patch").unlink()
    (folder / "p.patch").symlink_to("patches/a.patch")
    assert load_overlay(folder).changes[1] == PatchChange("p.patch")


def test_a_folder_without_overlay_yaml_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_overlay(tmp_path / "none")
    assert caught.value.code == "yaml.missing"


def test_the_folder_may_be_named_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, SMALL)
    monkeypatch.chdir(folder)
    assert load_overlay(Path()).folder == folder
    assert load_overlay(Path("../tep/patches/..")).folder == folder


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeleteChange(),
        lambda: DeleteChange("a/b", "a/*", 1),
        lambda: DeleteChange(glob="a/*"),
        lambda: DeleteChange("a/b", count=1),
        lambda: BlobChange("a/b", A),
        lambda: BlobChange("a/b", A, url="https://x.org", file="y"),
        lambda: FileChange("x", "../y/z"),
        lambda: Proof(),
        lambda: Guard((), A),
        lambda: Guard((A, A), B),
        lambda: Overlay("Tep", "d", (), Path("/x/Tep")),
    ],
)
def test_values_made_by_programs_are_validated_too(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]
