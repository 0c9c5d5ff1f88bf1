"""Bad luck while a real registry is spoken to: cut connections, tags that belong to others, a base that lies.

Reports retold here: distribution/distribution#3755 and oras-project/oras-py#150 (an upload cut in the middle),
goharbor/harbor#23600 (one byte changed), moby/moby#33558.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_registry import RealRegistry

from imagebuild.registry.retry import RetryPolicy
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = [pytest.mark.integration, pytest.mark.slow(50)]

BASE = engine_base()


@pytest.fixture
def space(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> SmallWorkspace:
    registry.put_image("lib/engine", "1.0", BASE)
    made = SmallWorkspace(tmp_path / "ws", BASE, f"{registry.host}/lib/engine:1.0@{BASE.digest}")
    made.write_target()
    made.write_overlay()
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(made.cache))
    return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait for a thousandth of the time."""
    monkeypatch.setattr(RetryPolicy.__init__, "__defaults__", (6, 0.00025, 20.0, 120.0))


class CuttingProxy:
    """Passes bytes between a client and a registry; connection number `cut` is cut after `after` bytes of the client's
    (`upward`) or of the registry's."""

    def __init__(self, upstream: str, after: int, *, upward: bool, times: int = 1) -> None:
        self.host_port = upstream.partition(":")
        self.after, self.upward, self.left = after, upward, times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._open: list[socket.socket] = []
        self._counting = threading.Lock()
        self.cuts = 0

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            one.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self.host_port[0], int(self.host_port[2])))
            self._open += [client, server]
            for source, target, watched in ((client, server, self.upward), (server, client, not self.upward)):
                threading.Thread(target=self._pump, args=(source, target, watched), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, watched: bool) -> None:
        passed = 0
        try:
            while part := source.recv(4096):
                passed += len(part)
                if watched and passed > self.after and self._takes_a_cut():
                    break
                target.sendall(part)
        except OSError:
            pass
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _takes_a_cut(self) -> bool:
        with self._counting:
            if self.left == 0:
                return False
            self.left -= 1
            self.cuts += 1
            return True


@pytest.mark.parametrize("upward", [True, False], ids=["upload", "answer"])
@pytest.mark.parametrize("after", [0, 600, 6000])
def test_a_push_whose_connection_is_cut_goes_on_by_itself(
    registry: RealRegistry, in_workspace: Any, verb: Any, upward: bool, after: int
) -> None:
    space = in_workspace(BASE)
    assert verb("lock", "tuned").code == 0
    with CuttingProxy(registry.host, after, upward=upward) as proxy:
        done = verb("build", "tuned", "--output", f"{proxy.host}/team/engine:x", "--allow-base-transfer", "--json")
        assert done.code == 0, done.err
        assert proxy.cuts <= 1
    assert registry.tags() == {"team/engine:x": str(space.digest())}
    assert registry.incomplete() == []


def test_a_registry_that_is_gone_in_the_middle_is_exit_3_and_the_same_command_completes(
    registry: RealRegistry, space: SmallWorkspace, verb: Any
) -> None:
    assert verb("lock", "tuned").code == 0
    before = space.snapshot()
    with CuttingProxy(registry.host, 500, upward=True, times=1000) as proxy:
        refused = verb("build", "tuned", "--output", f"{proxy.host}/team/engine:x", "--allow-base-transfer", "--json")
    assert refused.code == 3
    assert refused.document["code"].startswith("registry.")
    assert "team/engine:x" not in registry.tags()
    assert registry.incomplete() == []
    assert space.snapshot() == before
    done = verb("build", "tuned", "--output", f"{registry.host}/team/engine:x", "--json")
    assert (done.code, done.document["digest"]) == (0, str(space.digest()))


def test_a_tag_that_points_elsewhere_is_not_moved_without_force(
    registry: RealRegistry, space: SmallWorkspace, verb: Any
) -> None:
    other = make_image(ImageSpec((LayerSpec((File("x", b"theirs"),)),)))
    registry.put_image("team/engine", "x", other)
    assert verb("lock", "tuned").code == 0
    output = f"{registry.host}/team/engine:x"
    refused = verb("build", "tuned", "--output", output, "--json")
    assert (refused.code, refused.document["code"]) == (1, "registry.tag-elsewhere")
    assert str(other.digest) in refused.err
    assert "--force" in refused.document["hint"]
    assert registry.tags()["team/engine:x"] == str(other.digest)
    forced = verb("build", "tuned", "--output", output, "--force", "--json")
    assert forced.code == 0, forced.err
    assert forced.document["previous"] == [str(other.digest)]
    assert str(other.digest) in forced.err
    assert registry.tags()["team/engine:x"] == str(space.digest())


def test_our_own_earlier_image_is_replaced_without_force_and_told(
    registry: RealRegistry, space: SmallWorkspace, verb: Any
) -> None:
    assert verb("lock", "tuned").code == 0
    output = f"{registry.host}/team/engine:x"
    assert verb("build", "tuned", "--output", output).code == 0
    old = str(space.digest())
    space.write_target(env={"ADDED": "1"})
    assert verb("lock", "tuned").code == 0
    again = verb("build", "tuned", "--output", output, "--json")
    assert (again.code, again.document["previous"]) == (0, [old])
    space.write_target("second")
    assert verb("lock", "second").code == 0
    refused = verb("build", "second", "--output", output, "--json")
    assert (refused.code, refused.document["code"]) == (1, "registry.tag-elsewhere")


@pytest.mark.parametrize("fault", ["changed", "short", "gone"])
def test_a_layer_that_the_registry_does_not_hold_whole(
    registry: RealRegistry, space: SmallWorkspace, verb: Any, fault: str
) -> None:
    layer = BASE.layers[2].descriptor
    path = registry.storage / "blobs" / "sha256" / layer.digest.hex[:2] / layer.digest.hex / "data"
    data = path.read_bytes()
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-9] + b"X" + data[-8:] if fault == "changed" else data[:-100])
    before = space.snapshot()
    refused = verb("lock", "tuned", "--json")
    assert refused.code == (1 if fault == "changed" else refused.code)
    assert refused.code in (1, 3)
    assert refused.document["kind"] == "error"
    assert layer.digest.hex[:12] in refused.document["message"]
    assert space.snapshot() == before
    path.write_bytes(data)
    assert verb("lock", "tuned").code == 0


def test_no_registry_at_all_is_exit_3(space: SmallWorkspace, verb: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    space.base_reference = f"127.0.0.1:{port}/lib/engine@{BASE.digest}"
    space.write_target()
    before = space.snapshot()
    refused = verb("lock", "tuned", "--json")
    assert refused.code == 3
    assert refused.document["code"].startswith("registry.")
    assert space.snapshot() == before


def test_an_image_that_is_not_there_is_exit_1(registry: RealRegistry, space: SmallWorkspace, verb: Any) -> None:
    missing = verb("verify", f"{registry.host}/team/none@{BASE.digest}", "--json")
    assert missing.code in (1, 3)
    assert missing.document["kind"] == "error"
