"""Streams that are closed, full, unread or of a narrow encoding change no answer and no exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

IMAGEBUILD = f"{sys.executable} -m imagebuild"


def shell(line: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, env={**os.environ, **environment}, timeout=60, check=False
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("explain", 0), ("explain no.such", 2)])
def test_a_closed_stream_changes_no_exit_code(closed: str, words: str, code: int) -> None:
    done = shell(f"{IMAGEBUILD} {words} {closed}")
    assert done.returncode == code
    assert b"bug" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", ["explain", "--help", "lock --help", "schema target", "--json explain"])
def test_a_full_disk_is_exit_3(words: str) -> None:
    done = shell(f"{IMAGEBUILD} {words} > /dev/full")
    assert done.returncode == 3
    assert b"no room left while writing stdout [content.disk-full]" in done.stderr


@pytest.mark.parametrize("words", ["explain no.such", "--json explain no.such"])
def test_an_error_that_nobody_reads_keeps_its_exit_code(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "imagebuild", *words.split()], stdout=write, stderr=write, timeout=60, check=False
    )
    os.close(write)
    assert done.returncode == 2


def test_help_that_nobody_reads_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "imagebuild", "lock", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gb18030"])
def test_a_narrow_encoding_ends_no_run(encoding: str) -> None:
    done = shell(f"{IMAGEBUILD} --help", PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert done.stdout.startswith(b"usage: imagebuild VERB ")
    document = json.loads(
        shell(f"{IMAGEBUILD} --json explain 'no.\u00e9\U0001f600'", PYTHONIOENCODING=encoding).stdout.decode(encoding)
    )
    assert "no.\u00e9\U0001f600" in document["message"]
