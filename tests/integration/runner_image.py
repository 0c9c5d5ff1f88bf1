"""A Debian with Python as a layout, for runners to start: two layers, the upper one takes something away."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tools import missing

from imagebuild.check.images import checked_image
from imagebuild.check.runner import CheckedImage
from imagebuild.errors import ImagebuildError
from imagebuild.oci import media_types as mt
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.testing.real_root import debian_root

AMD64 = Platform("linux", "amd64")
PYTHON = "/usr/bin/python3"
MARK = "the upper layer's\n"
ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin", "OF_IMAGE=from the image", "TO_GO=away"]


def _upper() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data, mode in (
            ("opt/mark", MARK.encode(), 0o644),
            ("usr/share/.wh.debconf", b"", 0o644),
            ("opt/not-a-program", b"\x7fELF nothing", 0o755),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), mode, 1_700_000_000
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("opt/mark-too")
        link.type, link.linkname = tarfile.LNKTYPE, "opt/mark"
        tar.addfile(link)
    return out.getvalue()


def make_layout(folder: Path, root: Path) -> Path:
    """`folder` as a layout of one image, named `real`, on the tar `root`."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data), **more}

    lower, upper = root.read_bytes(), _upper()
    layers = [
        blob(lower, f"{mt.OCI_LAYER}"),
        blob(gzip.compress(upper, 1, mtime=0), f"{mt.OCI_LAYER}+gzip"),
    ]
    config = blob(
        json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ENVIRONMENT, "Entrypoint": ["/never-started"], "Cmd": ["x"], "WorkingDir": "/opt"},
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in (lower, upper)],
                },
            }
        ).encode(),
        mt.OCI_CONFIG,
    )
    manifest = blob(
        json.dumps({"schemaVersion": 2, "mediaType": mt.OCI_MANIFEST, "config": config, "layers": layers}).encode(),
        mt.OCI_MANIFEST,
        annotations={"org.opencontainers.image.ref.name": "real"},
    )
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return folder


def real_image(folder: Path) -> CheckedImage:
    """The image, made in `folder` if it is not there."""
    if not (folder / "index.json").is_file():
        try:
            root = debian_root()
        except ImagebuildError as error:
            missing(str(error))
        make_layout(folder, root)
    return checked_image(LayoutSource(folder), "real", AMD64)


@pytest.fixture(scope="session")
def debian_image(tmp_path_factory: pytest.TempPathFactory) -> CheckedImage:
    return real_image(tmp_path_factory.mktemp("runner-image") / "layout")
