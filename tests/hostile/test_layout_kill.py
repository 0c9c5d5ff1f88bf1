"""Writers of a layout that are killed at any moment, or that work at the same time."""

import hashlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.files import TEMPORARY_PREFIX
from imagebuild.oci.layout import LayoutSink, LayoutSource, layout_current
from imagebuild.oci.lock import LOCK_FILE, locked
from imagebuild.testing.images import File, ImageSpec, LayerSpec, MadeImage, make_image, write_layout
from imagebuild.testing.memory import as_image

BASE = LayerSpec((File("base"),))
BASE_IMAGE = make_image(ImageSpec((BASE,)))
STEPS = ("mkdir", "replace", "link", "fsync", "unlink", "fchmod", "open")


def image(text: bytes) -> MadeImage:
    return make_image(ImageSpec((BASE, LayerSpec((File("new", text),)))))


def dies_at(step: int, work: Callable[[], Any]) -> bool:
    """Runs `work` in a child that is killed at the step-th call that changes a file system; False when it got through."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(real: Any) -> Any:
            def call(*args: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **more)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("before", ["nothing", "a layout"])
def test_killed_at_every_step_the_layout_is_valid_and_the_same_call_completes(tmp_path: Path, before: str) -> None:
    base = LayoutSource(write_layout(tmp_path / "base", BASE_IMAGE))
    old, new = image(b"old"), image(b"new")
    step = 0
    while True:
        folder = tmp_path / str(step)
        if before == "a layout":
            LayoutSink(folder).store(as_image(old), "v")
        killed = dies_at(step, lambda folder=folder: LayoutSink(folder).store(as_image(new, base=base), "v"))
        if (folder / "oci-layout").exists():
            current = layout_current(folder, "v")
            assert current in ({old.digest, new.digest} if before == "a layout" else {None, new.digest})
            for path in (folder / "blobs" / "sha256").iterdir():
                if not path.name.startswith(TEMPORARY_PREFIX):
                    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        result = LayoutSink(folder).store(as_image(new, base=base), "v")
        assert layout_current(folder, "v") == new.digest
        assert result.missing_blobs == ()
        assert not [p for p in folder.rglob("*") if p.name.startswith(TEMPORARY_PREFIX)]
        if not killed:
            break
        step += 1
    assert step > 15


def test_writers_at_the_same_time_lose_no_entry(tmp_path: Path) -> None:
    images = {f"v{n}": image(str(n).encode()) for n in range(12)}
    start = threading.Barrier(len(images))
    faults: list[BaseException] = []

    def work(name: str) -> None:
        try:
            start.wait()
            LayoutSink(tmp_path / "l").store(as_image(images[name]), name)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    source = LayoutSource(tmp_path / "l")
    assert {name: source.resolve(name).digest for name in source.names()} == {n: i.digest for n, i in images.items()}


def test_the_unfinished_files_of_a_living_writer_stay(tmp_path: Path) -> None:
    sink = LayoutSink(tmp_path)
    sink.store(as_image(image(b"a")), "a")
    unfinished = tmp_path / "blobs" / "sha256" / f"{TEMPORARY_PREFIX}x"
    unfinished.write_bytes(b"")
    with locked(tmp_path / "blobs", shared=True):
        sink.store(as_image(image(b"b")), "b")
        assert unfinished.exists()
    sink.store(as_image(image(b"b")), "b")
    assert not unfinished.exists()


def test_a_lock_is_one_holders_alone(tmp_path: Path) -> None:
    with locked(tmp_path) as held, locked(tmp_path, wait=False) as second:
        assert (held, second) == (True, False)
    with locked(tmp_path, shared=True), locked(tmp_path, shared=True, wait=False) as second:
        assert second
    assert os.listdir(tmp_path) == []


def test_folders_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import stat

    from imagebuild.errors import UnavailableError

    real = fcntl.flock

    def on_nfs(handle: int, flags: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(9, "Bad file descriptor")
        real(handle, flags)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    with locked(tmp_path) as held, locked(tmp_path, wait=False) as second:
        assert (held, second) == (True, False)
    assert os.listdir(tmp_path) == [LOCK_FILE]

    def never(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", never)
    with pytest.raises(UnavailableError) as caught, locked(tmp_path):
        pass
    assert caught.value.code == "oci.cannot-lock"
