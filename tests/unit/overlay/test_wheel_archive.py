"""Wheels read without trust: every rule that a bad one may break."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuild.errors import RefusedError
from imagebuild.overlay import wheel_archive
from imagebuild.overlay.wheel_archive import headers_of, open_wheel
from imagebuild.overlay.wheel_hashes import format_hash, parse_hash
from imagebuild.testing.small_wheels import make_wheel, record_of, wheel_files, write_wheel

INFO = "tiny-1.0.dist-info"
FILES = {"tiny/__init__.py": b"x = 1\n", "tiny/data.bin": bytes(range(256)) * 40}


def refusal(path: Path, name: str = "tiny", version: str = "1.0") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        open_wheel(path, name, version)
    return caught.value


def with_member(tmp_path: Path, name: str, data: bytes = b"", listed: bool = True) -> Path:
    members = wheel_files("tiny", "1.0", FILES)
    record = record_of({**members, name: data} if listed else members, INFO)
    return write_wheel(tmp_path / "w.whl", {**members, name: data}, record=record)


def test_a_good_wheel_is_read(tmp_path: Path) -> None:
    members = wheel_files("Tiny", "1.0", FILES, tags=["py2-none-any", "py3-none-any"], requires=["other>=1"])
    wheel = open_wheel(write_wheel(tmp_path / "w.whl", members, executable=["tiny/data.bin"]), "tiny", "1.0.0")
    assert wheel.info == "Tiny-1.0.dist-info"
    assert wheel.tags == ("py2-none-any", "py3-none-any")
    assert wheel.purelib
    assert set(wheel.members) == set(members)
    assert wheel.members["tiny/data.bin"].executable
    assert not wheel.members["tiny/__init__.py"].executable
    assert wheel.read("tiny/data.bin") == FILES["tiny/data.bin"]
    assert "Requires-Dist: other>=1" in wheel.metadata


def test_folders_in_the_archive_are_passed_over(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", FILES))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo("tiny/empty/"), b"")
    assert "tiny/empty/" not in open_wheel(path, "tiny", "1.0").members


@pytest.mark.parametrize(
    "name",
    [
        "../outside.py",
        "/etc/passwd",
        "tiny/../../x",
        "tiny//x",
        "tiny/./x",
        "a\\b",
        "tiny/.wh.x",
        "tiny/new\nline",
        "tiny/" + "x" * 256,
        "tiny/__init__.py/below",
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    assert refusal(with_member(tmp_path, name)).code == "overlay.wheel-malformed"


def test_a_name_cut_by_a_nul_is_refused(tmp_path: Path) -> None:
    path = with_member(tmp_path, "tiny/a_b.py")
    path.write_bytes(path.read_bytes().replace(b"tiny/a_b.py", b"tiny/a\0b.py"))
    assert refusal(path).code == "overlay.wheel-malformed"


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", FILES))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("tiny/__init__.py", FILES["tiny/__init__.py"])
    assert "twice" in refusal(path).message


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    def change(member: zipfile.ZipInfo) -> None:
        if member.filename == "tiny/data.bin":
            member.external_attr = (kind | 0o777) << 16

    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", FILES), change=change)
    assert "link or a device" in refusal(path).message


def test_unusual_compression_is_refused(tmp_path: Path) -> None:
    def change(member: zipfile.ZipInfo) -> None:
        member.compress_type = zipfile.ZIP_LZMA

    assert (
        "compressed"
        in refusal(write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", FILES), change=change)).message
    )


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", FILES))
    raw = bytearray(path.read_bytes())
    at = raw.find(b"PK\x01\x02")
    raw[at + 8] |= 1
    path.write_bytes(bytes(raw))
    assert "encrypted" in refusal(path).message


def test_a_bomb_is_refused_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_archive, "FLOOR", 1000)
    monkeypatch.setattr(wheel_archive, "RATIO", 2)
    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", {"tiny/zeros": bytes(1_000_000)}))
    assert refusal(path).code == "overlay.wheel-too-large"
    monkeypatch.setattr(wheel_archive, "FLOOR", 2_000_000)
    assert open_wheel(path, "tiny", "1.0").members["tiny/zeros"].size == 1_000_000


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_archive, "MEMBER_LIMIT", 4)
    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", FILES))
    assert refusal(path).code == "overlay.wheel-too-large"


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda m: record_of({**m, "tiny/data.bin": b"other"}, INFO), "bytes"),
        (lambda m: record_of({k: v for k, v in m.items() if k != "tiny/data.bin"}, INFO), "no row"),
        (lambda m: record_of({**m, "tiny/gone.py": b""}, INFO), "tiny/gone.py"),
        (lambda m: record_of(m, INFO).replace(b"tiny/data.bin,sha256=", b"tiny/data.bin,md5="), "md5="),
        (lambda m: record_of(m, INFO).replace(b"METADATA,sha256=", b"METADATA,sha256=AAAA"), ""),
    ],
)
def test_a_record_that_is_not_true_is_refused(
    tmp_path: Path, spoil: Callable[[dict[str, bytes]], bytes], found: str
) -> None:
    members = wheel_files("tiny", "1.0", FILES)
    error = refusal(write_wheel(tmp_path / "w.whl", members, record=spoil(members)))
    assert error.code == "overlay.wheel-record-mismatch"
    assert found in (error.found or "")


def test_other_bytes_of_equal_size_are_found_while_they_are_read(tmp_path: Path) -> None:
    members = wheel_files("tiny", "1.0", FILES)
    record = record_of({**members, "tiny/__init__.py": b"x = 2\n"}, INFO)
    wheel = open_wheel(write_wheel(tmp_path / "w.whl", members, record=record), "tiny", "1.0")
    with pytest.raises(RefusedError) as caught:
        wheel.read("tiny/__init__.py")
    assert caught.value.code == "overlay.wheel-record-mismatch"
    with wheel.open("tiny/__init__.py") as stream:
        assert stream.read(6) == b"x = 1\n"
        with pytest.raises(RefusedError):
            stream.read(1)


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "w.whl", wheel_files("tiny", "1.0", {"tiny/a.py": b"abc" * 500}))
    raw = bytearray(path.read_bytes())
    at = raw.find(b"tiny/a.py") + len("tiny/a.py") + 3
    raw[at] ^= 0xFF
    path.write_bytes(bytes(raw))
    wheel = open_wheel(path, "tiny", "1.0")
    with pytest.raises(RefusedError) as caught:
        wheel.read("tiny/a.py")
    assert caught.value.code == "overlay.wheel-malformed"
    assert "tiny/a.py" in caught.value.message


@pytest.mark.parametrize("leaf", ["METADATA", "WHEEL"])
def test_missing_metadata_is_refused(tmp_path: Path, leaf: str) -> None:
    members = wheel_files("tiny", "1.0", FILES)
    del members[f"{INFO}/{leaf}"]
    assert leaf in refusal(write_wheel(tmp_path / "w.whl", members)).message


def test_another_distribution_or_version_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "tiny", "1.0", FILES)
    assert refusal(path, name="other").code == "overlay.wheel-identity"
    error = refusal(path, version="1.1")
    assert (error.code, error.found) == ("overlay.wheel-identity", "tiny 1.0")


def test_a_later_wheel_format_is_refused(tmp_path: Path) -> None:
    members = wheel_files("tiny", "1.0", FILES)
    members[f"{INFO}/WHEEL"] = members[f"{INFO}/WHEEL"].replace(b"Wheel-Version: 1.0", b"Wheel-Version: 2.0")
    assert refusal(write_wheel(tmp_path / "w.whl", members)).found == "2.0"


def test_what_is_no_zip_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.whl"
    path.write_bytes(b"<html>not found</html>")
    assert refusal(path).code == "overlay.wheel-malformed"


def test_two_metadata_folders_are_refused(tmp_path: Path) -> None:
    assert ".dist-info" in refusal(with_member(tmp_path, "other-1.dist-info/METADATA")).message


def test_signatures_of_the_record_need_no_row(tmp_path: Path) -> None:
    path = with_member(tmp_path, f"{INFO}/RECORD.jws", b"{}", listed=False)
    assert f"{INFO}/RECORD.jws" not in open_wheel(path, "tiny", "1.0").members


def test_headers_are_folded_and_end_at_the_blank_line() -> None:
    found = headers_of("Name: a\nDescription: one\n  two\nTag: x\nTag: y\n\nName: b\n")
    assert found == {"name": ["a"], "description": ["one two"], "tag": ["x", "y"]}


def test_hashes_are_read_and_written_alike() -> None:
    digest = parse_hash("sha256=LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ")
    assert digest is not None
    assert format_hash(digest) == "sha256=LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ"
    for text in ("md5=abc", "sha256=", "sha256", "sha256=" + "!" * 43, ""):
        assert parse_hash(text) is None


def test_nothing_of_the_archive_is_read_beyond_its_end(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "tiny", "1.0", FILES)
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert refusal(path).code in ("overlay.wheel-malformed", "overlay.wheel-record-mismatch")
    assert zipfile.is_zipfile(io.BytesIO(whole))
