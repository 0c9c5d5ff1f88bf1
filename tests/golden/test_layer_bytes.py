"""The bytes of layers, pinned for ever: the canonical tar and both gzip forms of one list of entries.

`python tests/golden/test_layer_bytes.py` writes the files again; a change of them needs another layer format number.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import pytest

from imagebuild.layer.entry import NewEntry
from imagebuild.layer.pack import DEFLATE, NONE, STORED, pack_layer
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.tar_writer import LAYER_FORMAT
from imagebuild.oci import media_types as mt
from imagebuild.testing.new_entries import new_file, new_folder, new_link, new_whiteout

FOLDER = Path(__file__).parent / "layer"
TEXT = "".join(f"line {n} of a file that deflates\n" for n in range(4000)).encode()
ENTRIES: tuple[NewEntry, ...] = (
    new_folder("opt/new", 0o750, 1000, 1001),
    new_file("opt/new/text", TEXT, 0o640, 1000, 1001, 1_764_460_800),
    new_file("opt/new/" + "long-" * 30 + "name", b"pax path"),
    new_file("opt/" + "p" * 80 + "/" + "q" * 80, b"ustar prefix"),
    new_file("opt/new/naïve", b"not ascii"),
    new_file(
        "opt/cap", b"\x7fELF", 0o4755, xattrs={"security.capability": bytes.fromhex("0100000200040000"), "user.a": b"="}
    ),
    new_file("opt/far", b"", uid=3_000_000, mtime=1 << 34),
    new_file("opt/oldest", b"", mtime=315_532_800),
    new_link("opt/link", "new/text"),
    new_link("opt/longlink", "/" + "t" * 150),
    new_whiteout("opt/gone"),
    new_whiteout("opt/new/__pycache__"),
)
FORMS = {NONE: "canonical.tar", STORED: "stored.tar.gz", DEFLATE: "deflate.tar.gz"}
DIGESTS = {
    NONE: "f23e86e42f66b83926b4e867951d26f9531296e486427c82cd82e2e8cefe9983",
    STORED: "d774f79081f394ed7729166672ef1c3a6c6ccb178cbf40a1a6b5acead7800c4a",
    DEFLATE: "c13468683c8816eabf3bf6a8015dfe4c59e41b30d93128c7a287bacb1f33bc68",
}


def packed(compressor: str, folder: Path) -> bytes:
    return pack_layer(ENTRIES, family=mt.OCI, compressor=compressor, workdir=folder).path.read_bytes()


@pytest.mark.parametrize("compressor", FORMS)
def test_the_bytes_are_those_that_were_pinned(compressor: str, tmp_path: Path) -> None:
    assert LAYER_FORMAT == 1
    made = pack_layer(ENTRIES, family=mt.OCI, compressor=compressor, workdir=tmp_path)
    assert made.path.read_bytes() == (FOLDER / FORMS[compressor]).read_bytes()
    assert made.descriptor.digest.hex == DIGESTS[compressor]


def test_the_pinned_layers_hold_one_tar(tmp_path: Path) -> None:
    diff_ids = set()
    for compressor in FORMS:
        made = pack_layer(ENTRIES, family=mt.OCI, compressor=compressor, workdir=tmp_path)
        data = (FOLDER / FORMS[compressor]).read_bytes()
        diff_ids.add(read_layer(io.BytesIO(data), made.descriptor).diff_id)
    assert len(diff_ids) == 1


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for form, name in FORMS.items():
            (FOLDER / name).write_bytes(packed(form, Path(scratch)))
            sys.stdout.write(
                f"{name} {pack_layer(ENTRIES, family=mt.OCI, compressor=form, workdir=Path(scratch)).descriptor.digest.hex}\n"
            )
