"""Agreement with programs that others wrote: git writes what we read, GNU patch and git apply what we write."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuild.content.digest import git_blob_id
from imagebuild.errors import ImagebuildError
from imagebuild.host.process import run
from imagebuild.oci.platform import Platform
from imagebuild.overlay.importer import import_diff
from imagebuild.overlay.patch import format_patch
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_make import make_diff
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.series_tree import MemoryBase

pytestmark = pytest.mark.integration

AMD64 = Platform("linux", "amd64")
WHEEL = "IMAGEBUILD_TEST_WHEEL"


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        if os.environ.get("IMAGEBUILD_REQUIRE_TOOLS"):
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed")
    return found


def git(folder: Path, *arguments: str, stdin: bytes = b"", check: bool = True) -> bytes:
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    done = run([need("git"), *arguments], deadline=60, stdin=stdin, cwd=folder, environment=settings)
    if check and done.code:
        raise AssertionError(done.stderr.decode())
    return done.stdout if done.code == 0 else b"refused"


def edits(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Random files and random edits of them, with every kind of line end."""
    source = random.Random(seed)
    words = [b"a\n", b"b\n", b"\n", b"def f():\n", b"    return 1\n", b"x\r\n", b"\tt \n", b"-- \n", b"+++ b\n"]
    for _ in range(60):
        old = [source.choice(words) for _ in range(source.randrange(0, 40))]
        new = list(old)
        for _ in range(source.randrange(1, 6)):
            at = source.randrange(0, len(new) + 1)
            new[at : at + source.randrange(0, 3)] = [source.choice(words) for _ in range(source.randrange(0, 3))]
        ends = source.choice([(b"", b""), (b"end", b"end"), (b"end", b""), (b"", b"end")])
        one, other = b"".join(old) + ends[0], b"".join(new) + ends[1]
        if one != other and one and other:
            yield one, other


def test_what_git_writes_is_read_and_gives_git_s_own_blob(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    for number, (old, new) in enumerate(edits(1)):
        (tmp_path / "one").write_bytes(old)
        (tmp_path / "two").write_bytes(new)
        context = ("-U3", "-U1", "-U0", "--patience", "--minimal")[number % 5]
        done = run([need("git"), "diff", "--no-index", context, "one", "two"], deadline=60, cwd=tmp_path)
        text = (
            done.stdout.replace(b"a/one b/two", b"a/d/f b/d/f")
            .replace(b"--- a/one", b"--- a/d/f")
            .replace(b"+++ b/two", b"+++ b/d/f")
        )
        (file,) = parse_patch(text).files
        assert apply_patch(old, file.hunks) == new
        assert file.new_id is not None
        assert git_blob_id(new).startswith(file.new_id)


def test_git_apply_and_gnu_patch_take_what_we_write(tmp_path: Path) -> None:
    need("patch")
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "d").mkdir()
    for old, new in edits(2):
        target = tmp_path / "d/my file"
        text = make_diff("d/my file", old, new)
        target.write_bytes(old)
        git(tmp_path, "apply", "--whitespace=nowarn", "-p1", stdin=text)
        assert target.read_bytes() == new
        target.write_bytes(old)
        done = run(["patch", "-p1", "--fuzz=0", "--binary", "-s"], deadline=60, stdin=text, cwd=tmp_path)
        assert (done.code, target.read_bytes()) == (0, new), done.stdout


def test_git_apply_and_we_refuse_the_same_shifted_context(tmp_path: Path) -> None:
    """git looks for a hunk elsewhere and we do not, so only what git refuses must be refused by us."""
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "d").mkdir()
    refused = taken = 0
    for number, (old, new) in enumerate(edits(3)):
        (file,) = parse_patch(make_diff("d/f", old, new)).files
        other = (b"z\n" + old) if number % 2 else old.replace(b"b\n", b"c\n", 1)
        (tmp_path / "d/f").write_bytes(other)
        theirs = git(tmp_path, "apply", "--whitespace=nowarn", stdin=make_diff("d/f", old, new), check=False)
        try:
            mine = apply_patch(other, file.hunks)
        except ImagebuildError:
            refused += 1
            continue
        taken += 1
        assert theirs != b"refused"
        assert (tmp_path / "d/f").read_bytes() == mine
    assert refused > 10
    assert taken > 3


def test_a_real_git_history_is_imported_by_its_blob_ids(tmp_path: Path) -> None:
    """New, deleted, renamed, emptied and mode-changed files, quoted names, and prefixes from a git configuration."""
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "config", "diff.mnemonicPrefix", "true")
    before = {
        "vllm/envs.py": b"".join(b"line %d\n" % n for n in range(60)),
        "vllm/gone.py": b"gone\n",
        "vllm/moved.py": b"".join(b"m %d\n" % n for n in range(30)),
        "vllm/emptied.py": b"x\n",
        "vllm/tool": b"#!/bin/sh\n",
        "vllm/ünï code.py": b"u\n",
    }
    for name, data in before.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "one")
    after = dict(before)
    del after["vllm/gone.py"]
    after["vllm/envs.py"] = before["vllm/envs.py"].replace(b"line 9\n", b"nine\n").replace(b"line 59\n", b"end")
    after["vllm/moved to.py"] = after.pop("vllm/moved.py").replace(b"m 3\n", b"three\n")
    after["vllm/emptied.py"] = b""
    after["vllm/ünï code.py"] = b"U\n"
    after["vllm/new/__init__.py"] = b""
    after["vllm/new/mod.py"] = b"new = 1"
    for name in before.keys() - after.keys():
        (tmp_path / name).unlink()
    for name, data in after.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "vllm/tool").chmod(0o755)
    git(tmp_path, "add", "-A")
    base = MemoryBase(dict(before))
    for options in ([], ["--full-index"], ["--no-renames", "--no-prefix"], ["-U0"], ["--cached", "-M"]):
        diff = git(tmp_path, "diff", "HEAD", *options)
        made = import_diff("tep", diff, {AMD64: base}, {"vllm"})
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        assert set(made.guards) == changed


def test_a_stored_patch_goes_through_git_apply(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x").write_bytes(b"one\ntwo\n")
    text = b"diff --git a/d/x b/d/z\nold mode 100644\nnew mode 100755\nrename from d/x\nrename to d/z\n--- a/d/x\n+++ b/d/z\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    text += b"diff --git a/d/e b/d/e\nnew file mode 100644\n"
    git(tmp_path, "apply", stdin=b"Why: so.\n\n" + format_patch(parse_patch(text)))
    assert (tmp_path / "d/z").read_bytes() == b"one\n2\n"
    assert os.access(tmp_path / "d/z", os.X_OK)
    assert (tmp_path / "d/e").read_bytes() == b""


def test_an_import_into_the_real_wheel(tmp_path: Path) -> None:
    """A diff against other line numbers is refused by its blob id with the offsets, and taken without index lines."""
    wheel = os.environ.get(WHEEL)
    if not wheel:
        pytest.skip(f"{WHEEL} does not name a wheel")
    envs = zipfile.ZipFile(wheel).read("vllm/envs.py")
    older = b"# a line above\n" * 6 + envs
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/envs.py").write_bytes(older)
    git(tmp_path, "add", ".")
    line = b"    VLLM_KIMI_K3_GEMM_AR: bool = True\n"
    assert older.count(line) == 1
    (tmp_path / "vllm/envs.py").write_bytes(older.replace(line, line + b"    VLLM_EXTRA: bool = False\n"))
    diff = git(tmp_path, "diff")
    base = {AMD64: MemoryBase({"vllm/envs.py": envs})}
    with pytest.raises(ImagebuildError) as caught:
        import_diff("tep", diff, base, {"vllm"})
    assert "would apply at offset -6" in caught.value.message
    plain = b"".join(part for part in diff.splitlines(keepends=True) if not part.startswith(b"index "))
    made = import_diff("tep", plain, base, {"vllm"})
    (file,) = parse_patch(made.files["patches/0001-envs.patch"]).files
    assert apply_patch(envs, file.hunks) == envs.replace(line, line + b"    VLLM_EXTRA: bool = False\n")
