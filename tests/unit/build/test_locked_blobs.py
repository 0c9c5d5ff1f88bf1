"""Blobs from lock to image, the store that artefacts are kept in, and locked builds of both on a machine that has nothing."""

from __future__ import annotations

import http.server
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build import reproduce as reproduce_module
from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.events import Emitter
from imagebuild.build.locked import patch_content, stale_parts
from imagebuild.build.opening import Opener
from imagebuild.build.planning import plan_locked, plan_text
from imagebuild.build.reproduce import image_blobs, reproduce
from imagebuild.content.digest import Digest
from imagebuild.content.store import ContentStore
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.layer.pack import DEFLATE
from imagebuild.overlay.changes import BlobChange, WheelChange
from imagebuild.target.lock import format_lock, parse_lock
from imagebuild.testing.small_engine import PACKAGE, SITE
from imagebuild.testing.small_wheels import make_wheel

TABLE = b'{"rows": [4, 5, 6]}\n'


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(44)


def blob(path: str, data: bytes, more: str = "", where: str = "file: files/b") -> str:
    return f"  - blob: {{path: {path}, {where}, sha256: '{Digest.of(data)}'{more}}}\n"


def write(bench: Any, *changes: str, **files: bytes) -> None:
    bench.space.write_overlay(changes="".join(changes), files={f"files/{name}": data for name, data in files.items()})


def refused(b: Any) -> ImagebuildError:
    with pytest.raises(ImagebuildError) as caught:
        b.lock()
    return caught.value


class Served:
    """A web server on this machine; `files` by path, `asked` what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        served = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                data = served.files.get(self.path)
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, *words: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def served() -> Iterator[Served]:
    web = Served()
    thread = threading.Thread(target=web.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield web
    web.server.shutdown()
    web.server.server_close()


def test_a_blob_of_the_overlay_lies_in_the_artefacts_layer(bench: Callable[..., Any], tmp_path: Path) -> None:
    b = bench()
    write(
        b,
        blob("engine/data/table.json", TABLE),
        blob("engine/new/x.bin", b"new", where="file: files/c"),
        b=TABLE,
        c=b"new",
    )
    lock = b.lock().lock
    (platform,) = lock.inputs.platforms
    found = {item.path.removeprefix(f"/{SITE}/"): item for item in platform.artefacts}
    table = found["engine/data/table.json"]
    assert (table.origin, table.mode, table.uid) == ("blob:engine/data/table.json", 0o640, 1000)
    assert table.preimage == Digest.of(PACKAGE["engine/data/table.json"])
    assert (found["engine/new"].kind, found["engine/new/x.bin"].preimage) == ("directory", None)
    assert [(source.kind, source.name, source.size) for source in platform.sources] == [
        ("blob", "engine/data/table.json", len(TABLE)),
        ("blob", "engine/new/x.bin", 3),
    ]
    assert [layer.role for layer in lock.result.platforms[0].layers] == ["artefacts", "changes"]
    assert parse_lock(format_lock(lock), "lock") == lock
    b.build(lock, tmp_path / "out")


def test_the_record_follows_a_blob(bench: Callable[..., Any]) -> None:
    """images.md, Writing 8: the edit lies in the changes, small, above the blob."""
    b = bench()
    write(b, blob("engine/data/table.json", TABLE), b=TABLE)
    locked = b.lock()
    changes = {item.path.removeprefix(f"/{SITE}/"): item for item in locked.lock.inputs.platforms[0].changes}
    info = "engine-1.0.dist-info"
    ours = {f"{info}/{name}" for name in ("RECORD", "imagebuild.json", "sboms", "sboms/imagebuild.cdx.json")}
    assert set(changes) == ours
    record = locked.analyses["linux/amd64"].files[f"/{SITE}/engine-1.0.dist-info/RECORD"].decode()
    assert f",{len(TABLE)}\n" in next(line + "\n" for line in record.splitlines() if "table.json" in line)


def test_a_python_blob_takes_its_stale_bytecode_away(bench: Callable[..., Any]) -> None:
    b = bench()
    write(b, blob("engine/envs.py", b"X = 1\n"), b=b"X = 1\n")
    changes = b.lock().lock.inputs.platforms[0].changes
    assert [item.path for item in changes if item.kind == "whiteout"] == [
        f"/{SITE}/engine/__pycache__/envs.cpython-312.pyc"
    ]


def test_a_blob_that_is_edited_afterwards(bench: Callable[..., Any], tmp_path: Path) -> None:
    b = bench()
    write(
        b,
        blob("engine/data/table.json", TABLE),
        "  - edit: {path: engine/data/table.json, find: '5', replace: '55'}\n",
        b=TABLE,
    )
    lock = b.lock().lock
    (platform,) = lock.inputs.platforms
    below = next(item for item in platform.artefacts if item.kind == "file")
    above = next(item for item in platform.changes if item.path == below.path)
    assert above.preimage == below.postimage == Digest.of(TABLE)
    assert above.postimage == Digest.of(TABLE.replace(b"5", b"55"))
    assert above.mtime != below.mtime
    b.build(lock, tmp_path / "out")


def test_an_x86_64_object_in_a_linux_arm64_target(bench: Callable[..., Any]) -> None:
    """SemiAnalysisAI/InferenceX#1582."""
    b = bench(platforms=("linux/amd64", "linux/arm64"))
    write(b, blob("engine/x.so", elf(62)), b=elf(62))
    error = refused(b)
    assert error.code == "overlay.blob-machine"
    assert "linux/arm64" in error.message
    assert error.found == "x86_64"
    both = (
        blob("engine/x.so", elf(62), ", elf: x86_64, platforms: [linux/amd64]"),
        blob("engine/x.so", elf(183), ", elf: aarch64, platforms: [linux/arm64]", where="file: files/c"),
    )
    write(b, *both, b=elf(62), c=elf(183))
    first, second = b.lock().lock.inputs.platforms
    assert first.artefacts[0].postimage == Digest.of(elf(62))
    assert second.artefacts[0].postimage == Digest.of(elf(183))


def test_a_guard_of_a_blob_is_written_and_holds(bench: Callable[..., Any]) -> None:
    b = bench()
    write(b, blob("engine/data/table.json", TABLE), b=TABLE)
    applied = b.lock().analyses["linux/amd64"].applied
    guard = applied.guards("tune")["engine/data/table.json"]
    assert guard.preimage == (Digest.of(PACKAGE["engine/data/table.json"]),)
    assert guard.postimage == Digest.of(TABLE)


@pytest.mark.parametrize(
    ("change", "data", "found"),
    [
        (blob("engine/x", b"other"), b"bytes", str(Digest.of(b"bytes"))),
        (blob("engine/x", b"bytes", ", size: 4"), b"bytes", "5 bytes"),
    ],
)
def test_a_file_that_is_not_the_declared_one(bench: Callable[..., Any], change: str, data: bytes, found: str) -> None:
    b = bench()
    write(b, change, b=data)
    error = refused(b)
    assert (error.code, error.found) == ("build.artefact-mismatch", found)


def test_a_blob_from_an_address_is_fetched_once(bench: Callable[..., Any], served: Served, tmp_path: Path) -> None:
    b = bench()
    served.files["/t.json"] = TABLE
    write(b, blob("engine/data/table.json", TABLE, f", size: {len(TABLE)}", f"url: '{served.url}/t.json'"))
    lock = b.lock().lock
    b.build(lock, tmp_path / "one")
    assert served.asked == ["/t.json"]
    shutil.rmtree(b.space.cache)
    b.build(lock, tmp_path / "two")
    assert served.asked == ["/t.json"] * 2
    stored = list((b.space.cache / "artefacts" / "sha256").iterdir())
    assert [path.name for path in stored] == [Digest.of(TABLE).hex]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (b"x" * len(TABLE), "build.artefact-mismatch"),
        (TABLE + b"more", "registry.download-too-large"),
        (None, "registry.not-found"),
    ],
)
def test_what_an_address_gives_is_checked(
    bench: Callable[..., Any], served: Served, given: bytes | None, code: str
) -> None:
    b = bench()
    served.files.update({} if given is None else {"/t": given})
    write(b, blob("engine/data/table.json", TABLE, f", size: {len(TABLE)}", f"url: '{served.url}/t'"))
    assert refused(b).code == code
    assert not [path for path in (b.space.cache / "artefacts").rglob("*") if path.is_file()]


def test_a_wheel_from_an_address_on_a_machine_that_has_nothing(
    bench: Callable[..., Any], served: Served, tmp_path: Path
) -> None:
    """A locked build fetches wheels by digest, and nothing of the base (content is committed)."""
    b = bench()
    wheel = make_wheel(tmp_path, "plugin", "1.0", {"plugin/__init__.py": b"x = 1\n"})
    served.files["/linux/amd64/x86_64/plugin.whl"] = wheel.read_bytes()
    digest = Digest.of(wheel.read_bytes())
    write(
        b,
        f"  - wheel: {{name: plugin, version: '1.0', sha256: {{linux/amd64: '{digest}'}}, "
        f"url: '{served.url}/{{platform}}/{{arch}}/plugin.whl'}}\n",
        "  - edit: {path: plugin/__init__.py, find: '1', replace: '2'}\n",
    )
    b.space.write_target(roots={"plugin": {"python": "plugin"}})
    lock = b.lock().lock
    shutil.rmtree(b.space.cache)
    b.source.reads.clear()
    served.asked.clear()
    image = b.build(lock, tmp_path / "out")
    assert image.top.descriptor.digest == lock.result.digest
    assert served.asked == ["/linux/amd64/x86_64/plugin.whl"]
    assert b.layers_read() == []


def test_a_patched_wheel_file_comes_out_of_the_wheel_again(bench: Callable[..., Any], tmp_path: Path) -> None:
    """`content: cache`: neither content folder nor cache has the file, and no layer of the base ever had it."""
    b = bench()
    wheel = b.store.keep(make_wheel(tmp_path, "plugin", "1.0", {"plugin/__init__.py": b"x = 1\n"}))
    write(
        b,
        f"  - wheel: {{name: plugin, version: '1.0', sha256: {{linux/amd64: '{wheel.sha256}'}}}}\n",
        "  - edit: {path: plugin/__init__.py, find: '1', replace: '2'}\n",
    )
    b.space.write_target(roots={"plugin": {"python": "plugin"}}, content="cache")
    lock = b.lock().lock
    kept = patch_content(lock.inputs).keys()
    committed = b.contents.committed
    committed.keep_only(kept | {lock.inputs.base_digest, *(p.config for p in lock.inputs.platforms)})
    shutil.rmtree(b.space.cache / "content")
    assert b.build(lock, tmp_path / "out").top.descriptor.digest == lock.result.digest


def test_where_it_comes_from_is_no_part_of_what_it_is(bench: Callable[..., Any], served: Served) -> None:
    b = bench()
    served.files.update({"/a": TABLE, "/b": TABLE})
    write(b, blob("engine/data/table.json", TABLE, f", size: {len(TABLE)}", f"url: '{served.url}/a'"))
    lock = b.lock().lock
    write(b, blob("engine/data/table.json", TABLE, f", size: {len(TABLE)}", f"url: '{served.url}/b'"))
    target = b.workspace.target("tuned")
    assert stale_parts(lock, target, b.workspace.series(target)) == []
    write(b, blob("engine/data/table.json", b"other", where="file: files/b"), b=b"other")
    assert stale_parts(lock, target, b.workspace.series(target)) == ["overlay tune has changed"]


def test_the_plan_counts_artefacts(bench: Callable[..., Any]) -> None:
    b = bench()
    write(b, blob("engine/data/table.json", TABLE), b=TABLE)
    plan = plan_locked(b.lock().lock)
    assert plan["build"]["artefact_bytes"] == len(TABLE)
    (row,) = plan["platforms"][0]["artefacts"]
    assert (row["kind"], row["name"], row["files"]) == ("blob", "engine/data/table.json", 1)
    rows = {item["path"]: item["guard"] for item in plan["platforms"][0]["files"]}
    assert rows[f"/{SITE}/engine/data/table.json"] == "matches"
    assert "blob engine/data/table.json" in plan_text(plan)


def test_reproduce_hands_artefacts_over(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce_module, "find_pythons", lambda: {"this": sys.executable})
    b = bench()
    wheel = b.store.keep(make_wheel(tmp_path, "plugin", "1.0", {"plugin/__init__.py": b"x = 1\n"}))
    write(
        b,
        f"  - wheel: {{name: plugin, version: '1.0', sha256: {{linux/amd64: '{wheel.sha256}'}}}}\n",
        blob("engine/data/table.json", TABLE), b=TABLE,
    )  # fmt: skip
    lock = b.lock().lock
    expected = image_blobs(b.build(lock, tmp_path / "out"))
    target = b.workspace.target("tuned")
    done = reproduce(b.workspace, target, lock, b.contents, expected, Emitter(), b.store)
    assert [item.equal for item in done] == [True] * len(done)
    missing = reproduce(b.workspace, target, lock, b.contents, expected, Emitter())
    assert all("build.artefact-unavailable" in (item.reason or "") for item in missing)
    assert wheel.path.stat().st_mode & 0o777 == 0o644


def test_a_damaged_copy_in_the_cache_is_fetched_again(
    bench: Callable[..., Any], served: Served, tmp_path: Path
) -> None:
    b = bench()
    served.files["/t"] = TABLE
    change = BlobChange("engine/x", Digest.of(TABLE), url=f"{served.url}/t", size=len(TABLE))
    (overlay,) = b.workspace.series(b.workspace.target("tuned"))
    path = b.store.blob(overlay, change).path
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert b.store.blob(overlay, change).read() == TABLE
    assert served.asked == ["/t", "/t"]


def test_nothing_is_fetched_without_an_opener(tmp_path: Path) -> None:
    store = ArtefactStore(ContentStore(tmp_path / "a"), Emitter())
    from imagebuild.oci.platform import Platform

    amd64 = Platform("linux", "amd64")
    change = WheelChange("plugin", "1.0", {amd64: Digest.of(b"")})
    with pytest.raises(UnavailableError) as caught:
        store.wheel(change, amd64, "3.12")
    assert caught.value.code == "build.artefact-unavailable"
    with pytest.raises(RefusedError) as other:
        store.wheel(change, Platform("linux", "arm64"), "3.12")
    assert other.value.code == "build.wheel-no-digest"


def test_a_wheel_in_the_folder_of_wheels_is_found_by_its_digest(tmp_path: Path) -> None:
    from imagebuild.oci.platform import Platform

    wheel = make_wheel(tmp_path / "wheels", "plug-in", "1.0", {"plugin.py": b""})
    make_wheel(tmp_path / "wheels", "plug-in", "1.1", {"plugin.py": b""})
    store = ArtefactStore(ContentStore(tmp_path / "a"), Emitter(), opener=Opener(tmp_path), wheels=tmp_path / "wheels")
    change = WheelChange("Plug_In", "1.0", {Platform("linux", "amd64"): Digest.of(wheel.read_bytes())})
    assert store.wheel(change, Platform("linux", "amd64"), "3.12").path == wheel


def test_a_large_artefact_is_deflated_and_the_changes_stay_stored(bench: Callable[..., Any], tmp_path: Path) -> None:
    b = bench()
    large = bytes(range(256)) * 40_000
    write(b, blob("engine/large.bin", large), b=large)
    lock = b.lock().lock
    assert lock.inputs.platforms[0].compressors == {"artefacts": DEFLATE, "changes": "stored"}
    b.build(lock, tmp_path / "out")


def test_an_elf_that_contradicts_the_platform_is_an_input_error(bench: Callable[..., Any]) -> None:
    b = bench()
    write(b, blob("engine/x.so", elf(183), ", elf: aarch64"), b=elf(183))
    error = refused(b)
    assert isinstance(error, InputError)
    assert error.code == "overlay.blob-elf"


def test_requires_holds_of_the_finished_image(bench: Callable[..., Any]) -> None:
    b = bench()
    b.space.write_target(requires={"env": {"ENGINE_PORT": "8000"}})
    b.lock()
    write(b, blob("engine/data/table.json", TABLE), "  - env: {ENGINE_PORT: '9000'}\n", b=TABLE)
    error = refused(b)
    assert error.code == "lock.requires-env"
    assert "ENGINE_PORT=9000" in (error.found or "")
