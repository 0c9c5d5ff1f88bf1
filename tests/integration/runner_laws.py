"""What every runner with containers must do, asked of a real image: each test of a runner is one of these."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from ports import free_ports
from runner_image import MARK, PYTHON
from tools import missing

from imagebuild.check.runner import CheckedImage, End, Job, Mount, Runner
from imagebuild.host.clock import monotonic, sleep

ASK = """
import json, os, sys
given = os.environ["IMAGEBUILD_IN"]
left = os.environ["IMAGEBUILD_OUT"]
os.mkdir(left + "/deep")
with open(left + "/deep/answer.json", "w") as out:
    json.dump({"given": open(given + "/given.txt").read(), "mark": open("/opt/mark-too").read(), "links": os.stat("/opt/mark").st_nlink}, out)
os.chmod(left + "/deep/answer.json", 0)
os.symlink("/etc/shadow", left + "/link")
shm = os.statvfs("/dev/shm")
print(json.dumps({
    "environment": dict(os.environ), "folder": os.getcwd(), "uid": os.getuid(), "gone": not os.path.exists("/usr/share/debconf"),
    "shm": shm.f_frsize * shm.f_blocks, "pids": sum(name.isdigit() for name in os.listdir("/proc")),
    "interfaces": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else None,
}))
print("to stderr", file=sys.stderr)
sys.exit(42)
"""
SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = open("/opt/mark").read().encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


KILLED = """
import json, signal, sys
from pathlib import Path
from imagebuild.check.images import checked_image
from imagebuild.check.runner import Job
from imagebuild.check.runners import open_runner
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform

image = checked_image(LayoutSource(sys.argv[2]), "real", Platform("linux", "amd64"))
options = json.loads(sys.argv[3])
if "scratch" in options:
    options["scratch"] = Path(options["scratch"])
runner = open_runner(sys.argv[1], **{"keep": True, **options})
# a program that was started in the background ignores it, and so do those that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)
runner.run(image, Job(("/bin/sleep", *sys.argv[4:], "86399"), 86400))
"""
"""A process that waits for a job, until it is killed: runner, layout, options, and what else to sleep."""


def python(text: str, *words: str) -> tuple[str, ...]:
    return (PYTHON, "-c", text, *words)


def runs_with_files_and_environment(runner: Runner, image: CheckedImage, folder: Path) -> None:
    folder.mkdir()
    (folder / "data.txt").write_text("of the machine")
    environment = {"OF_JOB": "two\nlines and  spaces", "EMPTY": "", "OF_IMAGE": "laid over"}
    outcome = runner.run(
        image,
        Job(
            python(ASK),
            120,
            environment,
            ("TO_GO",),
            {"given.txt": "größer".encode()},
            mounts=(Mount(folder, "/mounted"),),
            shared_memory=128 << 20,
        ),
    )
    assert outcome.end is End.EXITED, outcome
    assert outcome.code == 42, outcome
    assert outcome.stderr == b"to stderr\n"
    said = json.loads(outcome.stdout)
    assert said["folder"] == "/opt"
    assert said["uid"] == 0
    assert said["gone"] is True
    assert said["shm"] == 128 << 20
    assert said["pids"] < 10
    assert {"eth0", "ens5"}.isdisjoint(said["interfaces"] or ())
    laid = said["environment"]
    assert (laid["OF_JOB"], laid["EMPTY"], laid["OF_IMAGE"]) == ("two\nlines and  spaces", "", "laid over")
    assert "TO_GO" not in laid
    assert laid["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert list(outcome.files) == ["deep/answer.json"]
    assert json.loads(outcome.files["deep/answer.json"]) == {"given": "größer", "mark": MARK, "links": 2}
    assert outcome.machine["filesLeftOut"] == ["link"]
    assert outcome.machine["runner"] == runner.name
    if runner.name in ("docker", "podman"):
        raw, _ = image.source.read_document(image.digest)
        assert outcome.machine["imageId"] == json.loads(raw)["config"]["digest"]


def sees_mounts_as_they_are_asked_for(runner: Runner, image: CheckedImage, folder: Path) -> None:
    folder.mkdir()
    (folder / "data.txt").write_text("of the machine")
    text = "print(open('/mounted/data.txt').read()); open('/mounted/new', 'w')"
    outcome = runner.run(image, Job(python(text), 120, mounts=(Mount(folder, "/mounted"),)))
    assert outcome.code == 1, outcome
    assert outcome.stdout == b"of the machine\n"
    assert b"Read-only file system" in outcome.stderr
    outcome = runner.run(image, Job(python(text), 120, mounts=(Mount(folder, "/mounted", read_only=False),)))
    assert outcome.code == 0, outcome
    assert (folder / "new").exists()


def keeps_the_image_clean(runner: Runner, image: CheckedImage) -> None:
    text = "import os; print(os.path.exists('/opt/stain')); open('/opt/stain', 'w'); open('/opt/mark', 'w')"
    for _ in range(2):
        outcome = runner.run(image, Job(python(text), 120))
        assert (outcome.code, outcome.stdout) == (0, b"False\n"), outcome


def ends_at_its_deadline(runner: Runner, image: CheckedImage) -> None:
    text = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(os.environ['IMAGEBUILD_OUT'] + '/so-far', 'w').write('half')\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)\n"
    )
    outcome = runner.run(image, Job(python(text), 4))
    assert (outcome.end, outcome.code) == (End.DEADLINE, None), outcome
    assert outcome.stdout == b"begun\n"
    assert outcome.files == {"so-far": b"half"}
    assert 4 <= outcome.seconds < 60


def tells_what_never_started(runner: Runner, image: CheckedImage) -> None:
    for command in (("/no/such/program",), ("/opt/mark",), ("no-such-name",), ("/opt/not-a-program",)):
        outcome = runner.run(image, Job(command, 60))
        assert (outcome.end, outcome.code) == (End.NOT_STARTED, None), (command, outcome)
        assert outcome.detail


def tells_exit_codes(runner: Runner, image: CheckedImage) -> None:
    """Those included that shells and runtimes use for words of their own."""
    for code in (0, 1, 125, 126, 127):
        outcome = runner.run(image, Job(python(f"raise SystemExit({code})"), 60))
        assert (outcome.end, outcome.code) == (End.EXITED, code), outcome
    outcome = runner.run(image, Job(("/bin/sh", "-c", "kill -SEGV $$; echo on"), 60))
    assert (outcome.end, outcome.code) == (End.EXITED, 139) or outcome.stdout == b"on\n", outcome


def serves_and_stops(runner: Runner, image: CheckedImage) -> None:
    (port,) = free_ports(1)
    server = runner.serve(image, Job(python(SERVE, str(port)), 120), port)
    try:
        host, told = server.address
        assert told == port
        until = monotonic() + 60
        data = b""
        while not data and monotonic() < until:
            assert server.ended() is None, server.ended()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/", timeout=5) as answer:
                data = answer.read()
            sleep(0.05)
        assert data == MARK.encode(), server.log_tail()
        assert "serving" in server.log_tail()
        assert '"GET / HTTP/1.1" 200' in server.log_tail()
    finally:
        outcome = server.stop()
    assert (outcome.end, outcome.code) == (End.EXITED, 9), outcome
    assert server.stop() is outcome
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        raise AssertionError("it still listens")


AS_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
"""What starts a program as nobody, from root."""


def for_users(folder: Path) -> None:
    """Lets every user reach a folder of the test's; ends the test where this Python is not for every user."""
    tried = subprocess.run([*AS_USER, sys.executable, "-c", "import json"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        missing(f"other users cannot run this Python: {tried.stderr[-200:]}")
    top = Path(tempfile.gettempdir())
    for path in (folder, *folder.parents):
        if path != top and path.is_relative_to(top):
            path.chmod(path.stat().st_mode | 0o055)


def is_gone(question: Callable[[], object], seconds: float = 30) -> bool:
    until = monotonic() + seconds
    while question():
        if monotonic() > until:
            return False
        sleep(0.05)
    return True


LAWS: Mapping[str, Callable[[Runner, CheckedImage], None]] = {
    "keeps the image clean": keeps_the_image_clean,
    "ends at its deadline": ends_at_its_deadline,
    "tells what never started": tells_what_never_started,
    "tells exit codes": tells_exit_codes,
    "serves and stops": serves_and_stops,
}
WITH_FOLDER: Mapping[str, Callable[[Runner, CheckedImage, Path], None]] = {
    "runs with files and environment": runs_with_files_and_environment,
    "sees mounts as they are asked for": sees_mounts_as_they_are_asked_for,
}
