"""Patch scripts read and never run: what is taken over, and what is refused by line."""

from __future__ import annotations

import textwrap

import pytest

from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.script_import import ReadScript, ScriptDiff, ScriptFile, import_script, parse_script
from imagebuild.overlay.series_tree import MemoryBase

AMD64 = Platform("linux", "amd64")
ENVS = b"one\ntwo\nthree\n"
DIFF = "--- a/vllm/envs.py\n+++ b/vllm/envs.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"


def script(text: str) -> ReadScript:
    return parse_script(textwrap.dedent(text).replace("@DIFF@\n", DIFF), "patch.sh")


def refusals(text: str) -> list[tuple[int, str]]:
    with pytest.raises((RefusedError, SeveralErrors)) as caught:
        script(text)
    errors = caught.value.errors if isinstance(caught.value, SeveralErrors) else (caught.value,)
    assert {error.code for error in errors} == {"overlay.script-refused"}
    assert all(error.hint for error in errors)
    return [(error.details["line"], error.message) for error in errors]


def diffs(read: ReadScript) -> list[str]:
    return [step.text for step in read.steps if isinstance(step, ScriptDiff)]


@pytest.mark.parametrize(
    "command",
    [
        "patch -p1 -d \"$ROOT\" <<'EOF'",
        "patch -p1 --forward <<'EOF'",
        "git apply - <<EOF",
        'git -C "$ROOT" apply -p1 <<\\EOF',
        "if ! patch -s -p1 <<'EOF'",
        "sudo patch -p1 <<-'EOF'",
        "cat <<'EOF' | patch -p1 -d \"$ROOT\"",
        "cat <<'EOF' | git apply -",
    ],
)
def test_diffs_in_here_documents(command: str) -> None:
    assert diffs(script(f"set -e\n{command}\n@DIFF@\nEOF\n")) == [DIFF]


def test_a_diff_that_is_written_first_and_applied_later() -> None:
    read = script(
        """\
        #!/usr/bin/env bash
        set -uo pipefail
        die() { echo "ERROR: $*" >&2; exit 1; }
        ROOT="$(python3 -c 'import vllm, os; print(os.path.dirname(vllm.__file__))' 2>/dev/null)"
        [ -n "$ROOT" ] && [ -d "$ROOT/vllm" ] || die "no root (ROOT='$ROOT')"
        for rel in a b; do
          [ -f "$ROOT/$rel" ] || die "missing ${rel}"
        done
        if grep -qF "marker's" "$ROOT/vllm/envs.py"; then
          echo "already applied"; exit 0
        fi
        WS="${WS:-/tmp/ws}"   # scratch
        mkdir -p "$WS" || die "no $WS"
        cat > "$WS/a.diff" <<'DIFF_A'
        @DIFF@
        DIFF_A
        ( cd "$ROOT" && patch -p1 --forward --fuzz=3 < "$WS/a.diff" ) \\
          || die "does not apply"
        case "$1" in
          -v|--verbose) echo "done" ;;
          *) : ;;
        esac
        """
    )
    assert diffs(read) == [DIFF]
    assert any("--fuzz=3 is not honoured" in note for note in read.notes)
    assert any("conditions" in note for note in read.notes)
    assert any("Python text is not run" in note for note in read.notes)


@pytest.mark.parametrize(
    "command", ["patch -p1 -i /tmp/a.diff", "git apply /tmp/a.diff", "patch -p1 --input=/tmp/a.diff"]
)
def test_the_ways_to_name_a_diff(command: str) -> None:
    assert diffs(script(f"cat > /tmp/a.diff <<'E'\n@DIFF@\nE\n{command}\n")) == [DIFF]


def test_a_dry_run_and_a_second_branch_count_once() -> None:
    read = script(
        """\
        cat <<'E' > /tmp/a.diff
        @DIFF@
        E
        if git apply --check /tmp/a.diff; then
          git apply /tmp/a.diff
        else
          patch -p1 --dry-run < /tmp/a.diff
          patch -p1 < /tmp/a.diff
        fi
        """
    )
    assert diffs(read) == [DIFF]
    assert any("taken once" in note for note in read.notes)


def test_whole_files() -> None:
    read = script(
        """\
        cat > "$ROOT/vllm/new.py" <<'EOF'
        x = "$HOME `id`"
        EOF
        cat > /usr/lib/python3/dist-packages/vllm/other.py <<'EOF'
        y = 1
        EOF
        tee "$DIST/vllm/third.py" > /dev/null <<'EOF'
        z = 1
        EOF
        """
    )
    assert read.steps == (
        ScriptFile(2, "vllm/new.py", b'x = "$HOME `id`"\n'),
        ScriptFile(5, "usr/lib/python3/dist-packages/vllm/other.py", b"y = 1\n"),
        ScriptFile(8, "vllm/third.py", b"z = 1\n"),
    )


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("sed -i 's/a/b/' $ROOT/vllm/envs.py", "edit"),
        ("perl -pi -e 's/a/b/' x", "edit"),
        ("pip install triton==3.7.0", "wheel"),
        ("uv pip install x", "wheel"),
        ("curl -fsSL https://example.com/x.diff -o x", "--from-diff"),
        ("wget https://example.com/x", "--from-diff"),
        ("git clone https://example.com/x", "stage"),
        ("cp a $ROOT/vllm/b.py", "file"),
        ("rm -rf $ROOT/vllm/old", "delete"),
        ("find $ROOT -name '__pycache__' -exec rm -rf {} +", "delete"),
        ("ln -s a b", "symlink"),
        ("chmod +x $ROOT/vllm/tool", "mode"),
        ("python3 patch_it.py", "--from-tree"),
        ("python3 -c \"open('x', 'w').write('y')\"", "--from-tree"),
        ("bash other.sh", "import that script"),
        ("source other.sh", "import that script"),
        ("echo x >> $ROOT/vllm/envs.py", "file"),
        ("printf y > $ROOT/vllm/envs.py", "file"),
        ("some-tool --do", "--from-tree"),
        ("$TOOL x", "--from-tree"),
        ("sudo -E env A=b pip install x", "wheel"),
        ("echo $(sed -i s/a/b/ x)", "edit"),
        ("x=`rm -f $ROOT/y`", "delete"),
        ("patch -R -p1 < x", "other way"),
        ("patch -p1 < downloaded.diff", "--from-diff"),
        ("git apply $PATCH_FILE", "--from-diff"),
        ("curl -s https://example.com/x | patch -p1", "--from-diff"),
    ],
)
def test_other_commands_are_refused_by_line(command: str, word: str) -> None:
    with pytest.raises((RefusedError, SeveralErrors)) as caught:
        script(f"# first\nset -e\n{command}\npatch -p1 <<'EOF'\n@DIFF@\nEOF\n")
    errors = caught.value.errors if isinstance(caught.value, SeveralErrors) else (caught.value,)
    assert all(error.details["line"] == 3 for error in errors)
    assert all(error.message.startswith("patch.sh:3: ") for error in errors)
    assert any(word in (error.hint or "") for error in errors)


def test_all_refusals_are_told_at_once() -> None:
    assert [line for line, _ in refusals("pip install x\npatch -p1 <<'E'\n@DIFF@\nE\nsed -i s/a/b/ y\n")] == [1, 11]


@pytest.mark.parametrize(
    "command",
    [
        "sed -n 1p x", "find . -name x", "pip show vllm", "git rev-parse HEAD", "python3 -m py_compile x.py",
        "rm -f /tmp/x", "rm -f $ROOT/a.rej", "test -f x > /dev/null 2>&1", "echo hi >&2", "trap 'rm -f x' EXIT",
        "[[ -f x && $y == z* ]]", "if [[ ! ( -d \"$A\" || a < b ) ]]; then echo ']]'; fi", "((n++)) || true", "((a < b)) && echo", "arr=(a b # c\n  d)", "n=$((1 + 2))", "export A=b C=d", "x=${y:0:12}", "cat <<< text",
        "say() { echo; echo \"#### $* ####\"; }\nsay \"1/9 it's\"",
    ],
)  # fmt: skip
def test_commands_that_only_look_are_passed_over(command: str) -> None:
    assert diffs(script(f"{command}\npatch -p1 <<'EOF'\n@DIFF@\nEOF\n")) == [DIFF]


def test_text_that_the_shell_would_change_is_refused() -> None:
    for text in ("+a $HOME", "+a `id`", "+a \\\\"):
        ((line, message),) = refusals(f"git apply <<EOF\n@DIFF@\n{text}\nEOF\n")
        assert line == 2
        assert "replaces" in message
    assert diffs(script("git apply <<EOF\n@DIFF@\nEOF\n")) == [DIFF]


def test_a_diff_that_is_none_is_named_by_its_line() -> None:
    ((line, _),) = refusals("echo\npatch -p1 <<'EOF'\nnothing\nEOF\n")
    assert line == 3


def test_scratch_files_that_nothing_applies_are_refused() -> None:
    ((line, message),) = refusals("cat > /tmp/x.diff <<'EOF'\n@DIFF@\nEOF\n")
    assert (line, "never applied" in message) == (2, True)


@pytest.mark.parametrize("text", ["echo 'open", 'echo "open', "x=$(echo", "cat <<EOF\nno end", "x=(a", "`open"])
def test_scripts_without_an_end_are_unreadable(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_script(text, "patch.sh")
    assert caught.value.code == "overlay.script-unreadable"


def test_a_script_without_changes_has_nothing_to_import() -> None:
    with pytest.raises(InputError) as caught:
        parse_script("#!/bin/sh\necho hello\n", "patch.sh")
    assert caught.value.code == "overlay.nothing-to-import"


def imported(text: str, base: dict[str, BaseFile | bytes]) -> object:
    return import_script("o", script(text), {AMD64: MemoryBase(base)}, ["vllm"])


def test_an_overlay_comes_of_it_with_guards() -> None:
    text = "cat > $R/vllm/new.py <<'E'\nx = 1\nE\npatch -p1 <<'E'\n@DIFF@\nE\ncat > /s/vllm/whole.py <<'E'\ny = 2\nE\n"
    made = imported(text, {"vllm/envs.py": ENVS, "vllm/whole.py": b"y = 1\n"})
    assert made.files["files/vllm/new.py"] == b"x = 1\n"  # type: ignore[attr-defined]
    assert set(made.guards) == {"vllm/new.py", "vllm/envs.py", "vllm/whole.py"}  # type: ignore[attr-defined]
    assert sum(name.startswith("patches/") for name in made.files) == 2  # type: ignore[attr-defined]


def test_fuzz_is_not_honoured() -> None:
    text = "patch -p1 --fuzz=3 <<'E'\n@DIFF@\nE\n"
    with pytest.raises(ImagebuildError) as caught:
        imported(text, {"vllm/envs.py": b"one\ntwo\nfour\n"})
    assert caught.value.code == "overlay.patch-mismatch"


def test_a_file_outside_every_root_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        imported("cat > /etc/motd <<'E'\nhi\nE\n", {"vllm/envs.py": ENVS})
    assert (caught.value.code, caught.value.details["line"]) == ("overlay.path-missing", 2)
