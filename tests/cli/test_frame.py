"""The frame of the command line: answers, exit codes, variables, signals."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagebuild.cli.main import main


def call(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "imagebuild", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_version_imports_nothing_else() -> None:
    script = (
        "import sys; sys.argv = ['imagebuild', '--version']\n"
        "from imagebuild.cli.main import entry\n"
        "try: entry()\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('yaml', 'urllib3', 'rich', 'argparse')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("imagebuild ")
    assert lines[1] == "[]"


def test_an_unknown_verb_is_exit_2_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["biuld"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "imagebuild build" in captured.err


def test_no_verb_at_all_is_exit_2_and_help_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out == ""
    assert main(["--help"]) == 0
    assert "reproduce" in capsys.readouterr().out


def test_json_gives_exactly_one_document_for_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "explain", "no.such"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["code"]) == ("error", "cli.unknown-code")


def test_common_options_stand_before_or_behind_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    for words in (
        ["--cache", str(tmp_path), "--json", "cache", "info"],
        ["cache", "info", "--json", "--cache", str(tmp_path)],
    ):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["folder"] == str(tmp_path)


def test_each_option_has_a_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBUILD_JSON", "1")
    assert main(["explain", "cli.usage"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "code"
    monkeypatch.setenv("IMAGEBUILD_JSON", "perhaps")
    assert main(["explain", "cli.usage"]) == 2
    monkeypatch.setenv("IMAGEBUILD_JSON", "0")
    monkeypatch.setenv("IMAGEBUILD_OLDER_THAN", "many")
    assert main(["cache", "info"]) == 2


def test_a_variable_is_read_as_its_option_is_and_the_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    from imagebuild.cli.options import Parser, apply_environment
    from imagebuild.cli.verb_build import configure
    from imagebuild.oci.platform import Platform

    monkeypatch.setenv("IMAGEBUILD_PLATFORM", "amd64")
    parser = Parser()
    configure(parser)
    apply_environment(parser)
    assert parser.parse_args(["x"]).platform == [Platform("linux", "amd64")]
    arm = Platform("linux", "arm64")
    assert parser.parse_args(["x", "--platform", "arm64", "--platform", "arm64"]).platform == [arm, arm]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--json", "--version"], 0, "imagebuild "),
        (["-V"], 2, "-V: there is no verb"),
        (["version"], 2, "imagebuild --version"),
        (["help"], 2, "imagebuild VERB --help"),
    ],
)
def test_what_other_programs_understand(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_a_misspelt_option_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock", "x", "--compelte"]) == 2
    assert "did you mean --complete?" in capsys.readouterr().err
    assert main(["lock", "x", "--zzz"]) == 2
    assert "see imagebuild lock --help" in capsys.readouterr().err


def test_an_unforeseen_exception_is_exit_4(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from imagebuild.cli import verb_explain

    def fail() -> None:
        raise KeyError("oops")

    monkeypatch.setattr(verb_explain, "load_codes", fail)
    assert main(["explain", "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["code"] == "internal.bug"
    assert "Traceback" not in captured.err
    assert main(["explain", "-v"]) == 4
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "code", "error"),
    [
        (errno.EACCES, 3, "content.io"),
        (errno.EROFS, 3, "content.io"),
        (errno.ENOSPC, 3, "content.disk-full"),
        (errno.ENOTDIR, 4, "internal.bug"),
    ],
)
def test_what_the_machine_refuses_is_no_bug_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: int, code: int, error: str
) -> None:
    def refuse() -> None:
        raise OSError(fault, os.strerror(fault), "/some/file")

    monkeypatch.setattr("imagebuild.cli.verb_explain.load_codes", refuse)
    assert main(["explain", "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["code"] == error
    assert "/some/file" in captured.err


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    script = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -m imagebuild lock x'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "[cli.no-folder]" in done.stderr


def test_a_closed_stdout_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "imagebuild", "explain"], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_have_their_exit_codes(number: signal.Signals, code: int) -> None:
    script = (
        "import os, signal, sys\n"
        "from imagebuild.cli import verb_explain, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & inherits it ignored\n"
        f"verb_explain.load_codes = lambda: os.kill(os.getpid(), {int(number)})\n"
        "sys.exit(main.main(['explain']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == code


def test_findings_are_annotations_on_github() -> None:
    done = call("explain", "no.such", GITHUB_ACTIONS="true")
    assert done.returncode == 2
    assert "::error title=cli.unknown-code::" in done.stderr
    assert "::error" not in call("explain", "no.such", GITHUB_ACTIONS="").stderr
