"""Processes that run beside us, and the runner that starts jobs on this machine."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

import pytest

from imagebuild.check.images import checked_image
from imagebuild.check.runner import CheckedImage, End, Job, Outcome
from imagebuild.check.runners import open_runner
from imagebuild.check.runners.serving import never_ran
from imagebuild.errors import InputError, UnavailableError
from imagebuild.host import process
from imagebuild.host.clock import monotonic, sleep
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import ImageSpec, LayerSpec, make_image, write_layout

AMD64 = Platform("linux", "amd64")


@pytest.fixture
def image(tmp_path: Path) -> CheckedImage:
    made = make_image(ImageSpec(layers=(LayerSpec(()),), config={"Env": ["SWITCH=of-image", "PATH=/nowhere"]}))
    write_layout(tmp_path / "layout", {"v1": made})
    return checked_image(LayoutSource(tmp_path / "layout"), "v1", AMD64)


def python(text: str) -> tuple[str, ...]:
    return ("python3", "-c", text)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(question: object) -> bool:
    until = monotonic() + 20
    while monotonic() < until:
        if question():  # type: ignore[operator]
            return True
        sleep(0.01)
    return False


def test_a_job_gets_its_files_and_environment_and_leaves_files(image: CheckedImage, tmp_path: Path) -> None:
    runner = open_runner("host", scratch=tmp_path / "scratch")
    text = (
        "import os, sys\n"
        "data = open(os.environ['IMAGEBUILD_IN'] + '/given.txt').read()\n"
        "out = os.environ['IMAGEBUILD_OUT']\n"
        "os.makedirs(out + '/deep')\n"
        "open(out + '/deep/left.txt', 'w').write(data.upper())\n"
        "os.symlink('/etc/passwd', out + '/link')\n"
        "os.mkfifo(out + '/pipe')\n"
        "print(os.environ['SWITCH'], os.environ.get('GONE'), sys.executable)\n"
        "print('wrong', file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    job = Job(python(text), 60, {"SWITCH": "1", "GONE": "x"}, ("GONE",), {"given.txt": b"words"})
    outcome = runner.run(image, job)
    assert (outcome.end, outcome.code) == (End.EXITED, 3)
    assert outcome.stdout.split()[:2] == [b"1", b"None"]
    assert outcome.stderr == b"wrong\n"
    assert outcome.files == {"deep/left.txt": b"WORDS"}
    assert outcome.machine["imageInvolved"] is False
    assert outcome.machine["filesLeftOut"] == ["link", "pipe"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_lines_of_the_image_are_laid_over_but_for_its_paths(image: CheckedImage) -> None:
    runner = open_runner("host")
    outcome = runner.run(image, Job(python("import os; print(os.environ['SWITCH'], os.environ['PATH'])"), 60))
    runner.close()
    assert outcome.stdout.startswith(b"of-image ")
    assert b"/nowhere" not in outcome.stdout


def test_a_deadline_ends_the_whole_group(image: CheckedImage, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    text = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(told)!r} + '.new', 'w').write(str(p.pid))\n"
        f"import os; os.rename({str(told)!r} + '.new', {str(told)!r})\n"
        "print('begun', flush=True)\n"
        "time.sleep(300)\n"
    )
    outcome = open_runner("host").run(image, Job(python(text), 3))
    assert (outcome.end, outcome.code) == (End.DEADLINE, None)
    assert outcome.stdout == b"begun\n"
    assert 3 <= outcome.seconds < 60
    assert eventually(lambda: not alive(int(told.read_text())))


def test_what_a_program_left_running_goes_with_it(tmp_path: Path) -> None:
    text = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']).pid)"
    started = process.start([sys.executable, "-c", text], limit=1000)
    assert started.wait(60) == 0
    assert eventually(lambda: not alive(int(started.output()[0])))


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    started = process.start([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], limit=10)
    assert started.wait(60) == 139


def test_output_is_bounded_and_its_end_is_kept() -> None:
    text = "import sys; sys.stdout.write('a' * 3_000_000); sys.stdout.write('END')"
    started = process.start([sys.executable, "-c", text], limit=1000)
    assert started.wait(60) == 0
    assert started.output() == (b"a" * 1000, b"")
    assert started.tail(5) == "aaEND"


def test_a_held_input_closes_with_the_end_only() -> None:
    text = "import sys; print('on', flush=True); sys.stdin.read()"
    started = process.start([sys.executable, "-c", text], limit=1000, hold_stdin=True)
    assert eventually(lambda: started.output()[0] == b"on\n")
    assert started.poll() is None
    assert started.stop(grace=5) == 143


def test_a_program_that_ignores_term_is_killed() -> None:
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(300)"
    started = process.start([sys.executable, "-c", text], limit=1000)
    assert eventually(lambda: started.output()[0] == b"on\n")
    assert started.stop(grace=0.2) == 137
    assert started.stop() == 137


def test_a_missing_program_never_started(image: CheckedImage) -> None:
    outcome = open_runner("host").run(image, Job(("no-such-program-anywhere",), 5))
    assert (outcome.end, outcome.code) == (End.NOT_STARTED, None)
    assert "no-such-program-anywhere" in outcome.detail


def test_a_server_answers_is_stopped_and_its_log_read(image: CheckedImage, tmp_path: Path) -> None:
    runner = open_runner("host", scratch=tmp_path / "scratch")
    text = (
        "import http.server, sys\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "print('port', server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    server = runner.serve(image, Job(python(text), 120, inputs={"a": b"1"}), 1)
    assert server.address == ("127.0.0.1", 1)
    assert eventually(lambda: "port" in server.log_tail())
    port = int(server.log_tail().split()[1])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/in/a", timeout=20) as answer:
        assert answer.read() == b"1"
    assert server.ended() is None
    outcome = server.stop()
    assert (outcome.end, outcome.code) == (End.EXITED, 143)
    assert server.stop() is outcome
    assert "GET /in/a" in server.log_tail()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_server_lives_no_longer_than_its_deadline(image: CheckedImage) -> None:
    server = open_runner("host").serve(image, Job(python("import time; time.sleep(300)"), 0.3), 1)
    assert eventually(lambda: server.ended() is not None)
    outcome = server.ended()
    assert outcome is not None
    assert outcome.end is End.DEADLINE


def test_a_server_that_dies_says_so(image: CheckedImage) -> None:
    server = open_runner("host").serve(image, Job(python("raise SystemExit(7)"), 60), 1)
    assert eventually(lambda: server.ended() is not None)
    outcome = server.stop()
    assert (outcome.end, outcome.code) == (End.EXITED, 7)


@pytest.mark.parametrize(
    "job",
    [
        Job((), 1),
        Job(("a\0b",), 1),
        Job(("true",), 1, {"A=B": "x"}),
        Job(("true",), 1, unset=("-x",)),
        Job(("true",), 1, inputs={"../x": b""}),
        Job(("true",), 1, inputs={".hidden": b""}),
    ],
)
def test_a_job_that_is_none_is_refused(image: CheckedImage, job: Job) -> None:
    with pytest.raises(InputError, match=r"check\.bad-job"):
        open_runner("host").run(image, job)


def test_an_unknown_runner_is_refused() -> None:
    with pytest.raises(InputError, match=r"check\.unknown-runner"):
        open_runner("nomad")


def test_a_program_that_may_not_be_run(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_text("x")
    with pytest.raises(UnavailableError, match=r"host\.missing-program"):
        process.start([str(path)], limit=1)
    assert os.access(path, os.R_OK)


@pytest.mark.parametrize(
    ("said", "ran"),
    [
        (b"exec /opt/x: exec format error\n", False),
        (b'{"msg":"exec container process `/opt/x`: Exec format error","level":"error","time":"2026"}\n', False),
        (b"exec /opt/x: exec format error\nand more\n", True),
        (b"something else\n", True),
    ],
)
def test_a_program_of_another_architecture_never_ran(said: bytes, ran: bool) -> None:
    outcome = never_ran(Outcome(End.EXITED, 1, b"", said))
    assert (outcome.end is End.EXITED) is ran
    assert outcome.code == (1 if ran else None)
    assert outcome.stderr == (said if ran else b"")
    assert never_ran(Outcome(End.EXITED, 1, b"it printed", said)).end is End.EXITED
    assert never_ran(Outcome(End.EXITED, 2, b"", said)).end is End.EXITED
