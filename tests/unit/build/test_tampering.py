"""What verify finds when somebody changed an image after it was built (cli.md, verify).

Reports retold here: the history of InferenceX (a `docker commit` image whose ENV has grown), buildah's push that
recompresses, containers/skopeo#1451.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build.base_documents import load_base
from imagebuild.build.verification import Verification
from imagebuild.build.verify_image import ImageVerifier
from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import Image
from imagebuild.oci.tree import read_image_tree
from imagebuild.target.lock_types import Lock
from imagebuild.testing.images import MadeImage
from imagebuild.testing.memory import MemorySource
from imagebuild.testing.small_engine import SITE

PLACE = f"{SITE}/engine"


@dataclass
class Opened:
    """A built image taken apart: tampering changes the values, `closed` writes it again with digests that agree."""

    manifest: dict[str, Any]
    config: dict[str, Any]
    layers: list[bytes]

    def rewrite_ours(self, change: Callable[[tarfile.TarInfo, bytes], Any]) -> None:
        """Passes our layer's entries through `change`, which gives (head, data), None to drop, or a list."""
        out = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(gzip.decompress(self.layers[-1]))) as old,
            tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for head in old:
                stream = old.extractfile(head)
                data = stream.read() if stream is not None else b""
                made = change(head, data)
                for one in made if isinstance(made, list) else [made]:
                    if one is not None:
                        one[0].size = len(one[1])
                        new.addfile(one[0], io.BytesIO(one[1]))
        self.set_layer(-1, out.getvalue())

    def set_layer(self, number: int, tar: bytes) -> None:
        self.layers[number] = gzip.compress(tar, 6, mtime=0)
        self.config["rootfs"]["diff_ids"][number] = str(Digest.of(tar))

    def closed(self) -> MemorySource:
        for entry, data in zip(self.manifest["layers"], self.layers, strict=True):
            entry["digest"], entry["size"] = str(Digest.of(data)), len(data)
        config = json.dumps(self.config).encode()
        self.manifest["config"] |= {"digest": str(Digest.of(config)), "size": len(config)}
        raw = json.dumps(self.manifest).encode()
        blobs = {Digest.of(data): data for data in (*self.layers, config, raw)}
        top = Descriptor(self.manifest["mediaType"], Digest.of(raw), len(raw))
        return MemorySource(MadeImage(top, raw, blobs))


@dataclass
class Case:
    bench: Any
    lock: Lock
    image: Image

    def opened(self) -> Opened:
        manifest = json.loads(self.image.top.raw)
        config = json.loads(self.image.configs[0].raw)
        layers = [self.bench.source.blobs[layer.digest] for layer in self.image.base_layers]
        for blob in self.image.own:
            with blob.open() as stream:
                layers.append(stream.read())
        return Opened(manifest, config, layers)

    def untouched(self) -> MemorySource:
        data = [*self.opened().layers, self.image.configs[0].raw, self.image.top.raw]
        blobs = {Digest.of(one): one for one in data}
        return MemorySource(MadeImage(self.image.top.descriptor, self.image.top.raw, blobs))

    def verify(self, source: MemorySource) -> Verification:
        lock = self.lock
        base = load_base(lock.inputs, self.bench.contents, lambda: pytest.fail("the base is not to be asked"))
        return ImageVerifier(lock, base).verify("memory:x", source, read_image_tree(source, None))


@pytest.fixture
def case(bench: Any, tmp_path: Path) -> Callable[..., Case]:
    def make(**of_base: Any) -> Case:
        b = bench(**of_base)
        b.space.write_target(env={"ENGINE_PORT": "9000", "ADDED": "1"})
        lock = b.lock(complete=True).lock
        return Case(b, lock, b.build(lock, tmp_path / "build"))

    return make


def failed(found: Verification) -> dict[str, Any]:
    """Code to the first failed check of that code."""
    out: dict[str, Any] = {}
    for check in found.checks:
        if check.passed is False:
            out.setdefault(check.code, check)
    return out


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_the_image_itself_passes(case: Any, family: mt.Family) -> None:
    c = case(family=family)
    found = c.verify(c.untouched())
    assert (found.passed, found.exit_code, found.recompressed) == (True, 0, False)
    assert len(found.checks) >= 7
    assert all(check.passed for check in found.checks)


def head_of(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    head = tarfile.TarInfo(name)
    head.mtime, head.mode = 1_700_000_000, 0o644
    return head, data


def at(path: str, change: Callable[[tarfile.TarInfo, bytes], Any]) -> Callable[[tarfile.TarInfo, bytes], Any]:
    """Changes one entry only."""
    return lambda head, data: change(head, data) if head.name == path else (head, data)


def altered(**fields: Any) -> Callable[[tarfile.TarInfo, bytes], Any]:
    def change(head: tarfile.TarInfo, data: bytes) -> Any:
        for key, value in fields.items():
            setattr(head, key, value)
        return head, data

    return change


LAYER_TAMPERING: dict[str, tuple[Callable[[tarfile.TarInfo, bytes], Any], str, str]] = {
    "content": (at(f"{PLACE}/extra.py", lambda h, d: (h, d.replace(b"True", b"None"))), f"/{PLACE}/extra.py", "sha256"),
    "mode": (at(f"{PLACE}/envs.py", altered(mode=0o666)), f"/{PLACE}/envs.py", "mode"),
    "set-id": (at(f"{PLACE}/envs.py", altered(mode=0o4644)), f"/{PLACE}/envs.py", "mode"),
    "owner": (at(f"{PLACE}/envs.py", altered(uid=1000)), f"/{PLACE}/envs.py", "owner"),
    "time": (at(f"{PLACE}/envs.py", altered(mtime=1_700_000_002)), f"/{PLACE}/envs.py", "mtime"),
    "xattr": (
        at(f"{PLACE}/envs.py", altered(pax_headers={"SCHILY.xattr.user.note": "other"})), f"/{PLACE}/envs.py", "xattrs",
    ),
    "xattr-gone": (at(f"{PLACE}/envs.py", altered(pax_headers={})), f"/{PLACE}/envs.py", "xattrs"),
    "whiteout-gone": (
        at(f"{PLACE}/__pycache__/.wh.envs.cpython-312.pyc", lambda h, d: None),
        f"/{PLACE}/__pycache__/envs.cpython-312.pyc", "whiteout",
    ),
    "file-gone": (at(f"{PLACE}/extra.py", lambda h, d: None), f"/{PLACE}/extra.py", "absent"),
    "file-added": (
        at(f"{PLACE}/extra.py", lambda h, d: [(h, d), head_of("etc/cron.d/x", b"* * * * *")]), "/etc/cron.d/x", "absent",
    ),
    "link-instead": (
        at(f"{PLACE}/extra.py", lambda h, d: altered(type=tarfile.SYMTYPE, linkname="envs.py")(h, b"")),
        f"/{PLACE}/extra.py", "kind",
    ),
    "whiteout-added": (
        at(f"{PLACE}/extra.py", lambda h, d: [(h, d), head_of("etc/.wh.passwd", b"")]), "/etc/passwd", "whiteout",
    ),
    "opaque-added": (
        at(f"{PLACE}/extra.py", lambda h, d: [(h, d), head_of("etc/.wh..wh..opq", b"")]), "/etc/.wh..wh..opq", "opaque",
    ),
    "provenance": (
        at(f"{SITE}/engine-1.0.dist-info/imagebuild.json", lambda h, d: (h, d.replace(b"engine", b"ENGINE"))),
        f"/{SITE}/engine-1.0.dist-info/imagebuild.json", "sha256",
    ),
    "sbom": (
        at(f"{SITE}/engine-1.0.dist-info/sboms/imagebuild.cdx.json", lambda h, d: (h, d.replace(b"tune", b"TUNE"))),
        f"/{SITE}/engine-1.0.dist-info/sboms/imagebuild.cdx.json", "sha256",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYER_TAMPERING)
def test_a_change_of_our_layer_is_named(case: Any, name: str) -> None:
    change, path, word = LAYER_TAMPERING[name]
    c = case()
    opened = c.opened()
    opened.rewrite_ours(change)
    found = c.verify(opened.closed())
    assert (found.passed, found.exit_code) == (False, 1)
    check = failed(found)["verify.layer-content"]
    text = f"{check.message} {check.expected} {check.found}"
    assert path in text, text
    assert word in text, text
    assert {"verify.digest", "verify.layer-bytes"} <= failed(found).keys()


def set_config(opened: Opened, key: str, value: Any) -> None:
    opened.config["config"][key] = value


CONFIG_TAMPERING: dict[str, tuple[Callable[[Opened], Any], str]] = {
    "env-added": (lambda o: o.config["config"]["Env"].append("LD_PRELOAD=/x.so"), "LD_PRELOAD"),
    "env-changed": (lambda o: o.config["config"]["Env"].__setitem__(0, "PATH=/tmp"), "PATH=/tmp"),
    "env-gone": (lambda o: o.config["config"]["Env"].pop(), "ADDED"),
    "label": (lambda o: o.config["config"]["Labels"].update(maintainer="somebody"), "somebody"),
    "label-added": (lambda o: o.config["config"]["Labels"].update(new="1"), "$.config.Labels.new"),
    "entrypoint": (lambda o: set_config(o, "Entrypoint", ["/bin/sh"]), "Entrypoint"),
    "user": (lambda o: set_config(o, "User", "nobody"), "User"),
    "history": (lambda o: o.config["history"][0].update(created_by="somebody"), "history"),
    "history-added": (lambda o: o.config["history"].append({"empty_layer": True, "created_by": "x"}), "history"),
    "created": (lambda o: o.config.update(created="2020-01-01T00:00:00Z"), "created"),
    "unknown-key": (lambda o: o.config.update(vendor={"x": 1}), "vendor"),
}


@pytest.mark.parametrize("name", CONFIG_TAMPERING)
def test_a_change_of_the_config_is_named(case: Any, name: str) -> None:
    change, word = CONFIG_TAMPERING[name]
    c = case()
    opened = c.opened()
    change(opened)
    found = c.verify(opened.closed())
    assert found.passed is False
    check = failed(found)["verify.config"]
    assert word in f"{check.message} {check.expected} {check.found}"
    assert "verify.layer-content" not in failed(found)


def test_annotations_of_the_manifest_are_compared(case: Any) -> None:
    c = case()
    opened = c.opened()
    opened.manifest["annotations"]["org.opencontainers.image.base.digest"] = "sha256:" + "0" * 64
    assert "base.digest" in failed(c.verify(opened.closed()))["verify.manifest"].message


def test_a_layer_on_top_is_found(case: Any) -> None:
    c = case()
    opened = c.opened()
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(*_added("root/.ssh/authorized_keys"))
    opened.layers.append(b"")
    opened.manifest["layers"].append({"mediaType": mt.OCI.layer_gzip})
    opened.config["rootfs"]["diff_ids"].append("")
    opened.set_layer(-1, tar.getvalue())
    opened.config["history"].append({"created_by": "docker commit"})
    found = failed(c.verify(opened.closed()))
    assert (found["verify.layer-count"].expected, found["verify.layer-count"].found) == ("1", "2")
    assert found["verify.config"]


def _added(name: str) -> tuple[tarfile.TarInfo, io.BytesIO]:
    head = tarfile.TarInfo(name)
    head.size = 3
    return head, io.BytesIO(b"key")


def test_our_layer_taken_off_is_found(case: Any) -> None:
    c = case()
    opened = c.opened()
    for listed in (
        opened.layers,
        opened.manifest["layers"],
        opened.config["rootfs"]["diff_ids"],
        opened.config["history"],
    ):
        listed.pop()
    found = failed(c.verify(opened.closed()))
    assert (found["verify.layer-count"].expected, found["verify.layer-count"].found) == ("1", "0")


def test_base_layers_in_another_order_are_found(case: Any) -> None:
    c = case()
    opened = c.opened()
    for listed in (opened.layers, opened.manifest["layers"], opened.config["rootfs"]["diff_ids"]):
        listed[0], listed[1] = listed[1], listed[0]
    check = failed(c.verify(opened.closed()))["verify.base-prefix"]
    assert "layer 1" in check.message


def test_another_base_layer_is_found(case: Any) -> None:
    c = case()
    opened = c.opened()
    opened.set_layer(0, gzip.decompress(opened.layers[0]) + bytes(512))
    check = failed(c.verify(opened.closed()))["verify.base-prefix"]
    assert "layer 1" in check.message
    assert check.expected == str(c.image.base_layers[0].digest)


def test_a_config_that_lies_about_our_layer_is_found(case: Any) -> None:
    c = case()
    opened = c.opened()
    opened.config["rootfs"]["diff_ids"][-1] = str(Digest.of(b"something else"))
    assert "verify.diff-id" in failed(c.verify(opened.closed()))


@pytest.mark.parametrize("which", ["all", "base"])
def test_layers_that_were_compressed_anew_are_recognised_and_said(case: Any, which: str) -> None:
    """As after docker pull, tag and push: other stored bytes, the same content."""
    c = case()
    opened = c.opened()
    for number in range(len(opened.layers) - (which == "base")):
        opened.layers[number] = gzip.compress(gzip.decompress(opened.layers[number]), 1, mtime=0)
    found = c.verify(opened.closed())
    assert (found.passed, found.recompressed) == (True, True), failed(found)
    codes = {check.code for check in found.checks}
    assert "verify.recompressed" in codes
    assert "verify.digest" not in codes


def test_recompression_hides_no_change(case: Any) -> None:
    c = case()
    opened = c.opened()
    opened.rewrite_ours(at(f"{PLACE}/extra.py", lambda h, d: (h, b"evil\n")))
    for number in range(len(opened.layers)):
        opened.layers[number] = gzip.compress(gzip.decompress(opened.layers[number]), 1, mtime=0)
    found = c.verify(opened.closed())
    assert found.passed is False
    assert {"verify.digest", "verify.layer-content"} <= failed(found).keys()


def test_what_cannot_be_read_is_not_checked_and_never_passed(case: Any) -> None:
    c = case()
    source = c.untouched()
    del source.blobs[c.image.own[0].descriptor.digest]
    found = c.verify(source)
    check = next(check for check in found.checks if check.code == "verify.layer")
    assert (check.passed, check.word) == (None, "not-checked")
    assert (found.passed, found.exit_code) == (None, 3)
    assert found.to_json()["passed"] is False


def test_a_layer_whose_bytes_are_not_its_digest_fails(case: Any) -> None:
    c = case()
    source = c.untouched()
    ours = c.image.own[0].descriptor.digest
    data = source.blobs[ours]
    source.blobs[ours] = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    assert failed(c.verify(source)).keys() == {"verify.layer"}
