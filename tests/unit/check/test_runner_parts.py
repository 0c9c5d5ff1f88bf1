"""Whose a container is, limits, files in and out, images that lie in two places."""

from __future__ import annotations

import gc
import io
import os
import re
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from imagebuild.build.labels import BASE_DIGEST, BASE_NAME, CONTENT_ID
from imagebuild.build.opening import Opener
from imagebuild.check.images import checked_image, open_image
from imagebuild.check.runner import Job, Mount
from imagebuild.check.runners import files, limits, owner
from imagebuild.check.runners.files import collect_folder, collect_tar, inputs_tar
from imagebuild.check.runners.loading import REPOSITORY, borrowed_layout, child_of, engine_name, is_stale_name
from imagebuild.check.runners.place import Place, Scratch, job_environment, laid_out, mount_of, place_of, remove_tree
from imagebuild.content.digest import Digest
from imagebuild.errors import UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.layout import LayoutSource, opened_blob
from imagebuild.oci.layout_reader import blob_name
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource
from imagebuild.target.site import Site
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image, write_layout
from imagebuild.testing.memory import MemorySource

AMD64 = Platform("linux", "amd64")

# Owners


def test_a_container_of_a_live_process_is_not_stale() -> None:
    assert not owner.is_stale(owner.labels(60))
    assert not owner.is_stale({})
    assert not owner.is_stale({owner.OWNER: "x"})


def test_a_container_of_a_dead_process_is_stale() -> None:
    asked = "from imagebuild.check.runners import owner; import os; print(owner.owner_of(os.getpid()))"
    dead = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    labels = {**owner.labels(60), owner.OWNER: dead}
    assert owner.is_stale(labels)
    # of another boot or another PID namespace nothing is known but its time
    assert not owner.is_stale({**labels, owner.OWNER: "other:" + dead.partition(":")[2]})


def test_a_number_that_another_process_has_now_is_not_its_owner() -> None:
    mine = owner.owner_of(os.getpid()).split(":")
    assert owner.is_stale({**owner.labels(60), owner.OWNER: ":".join([*mine[:3], str(int(mine[3]) - 1)])})


def test_a_container_whose_time_is_over_is_stale_whoever_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {**owner.labels(60), owner.OWNER: "another-boot:1:2:3"}
    monkeypatch.setattr(owner, "now", lambda: int(labels[owner.UNTIL]) + 1)
    assert owner.is_stale(labels)


def test_names_of_containers_are_plain_and_new() -> None:
    assert owner.job_name("smoke step 3/ö") != owner.job_name("smoke step 3/ö")
    assert owner.job_name("smoke step 3/ö").startswith("imagebuild-smoke-step-3-")
    assert owner.job_name("///").startswith("imagebuild-check-")


def test_a_process_holds_an_image_by_a_name_of_its_own() -> None:
    tag = owner.image_tag("a" * 32)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", tag)
    assert tag.startswith("a" * 32 + ".")
    assert not is_stale_name(f"{REPOSITORY}:{tag}")
    # not this process, but one of the same number
    dead = ".".join((*tag.split(".")[:4], "1", tag.split(".")[5]))
    assert is_stale_name(f"{REPOSITORY}:{dead}")
    # nobody's but ours, and none that is to be kept
    assert not is_stale_name(f"localhost/another:{dead}")
    assert not is_stale_name(f"{REPOSITORY}:{'a' * 32}")
    assert not is_stale_name(REPOSITORY)
    assert not is_stale_name("")


# Limits


def test_limits_are_set_where_they_cannot_be_raised_only(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {resource.RLIMIT_NOFILE: (10, 2000), resource.RLIMIT_NPROC: (1, -1), resource.RLIMIT_MEMLOCK: (1, 8)}
    monkeypatch.setattr(limits.resource, "getrlimit", lambda number: said.get(number, (5, -1)))
    assert limits.job_limits(False, raising=True) == {}
    assert limits.job_limits(True, raising=True) == {"memlock": (-1, -1)}
    assert limits.job_limits(True, raising=False) == {
        "core": (5, -1),
        "memlock": (8, 8),
        "nofile": (2000, 2000),
        "nproc": (32768, 32768),
        "stack": (5, -1),
    }


def test_capabilities_are_read_from_status() -> None:
    assert limits.capabilities("Name:\tx\nCapEff:\t0000000001000000\n") == 1 << 24
    assert limits.capabilities("Name:\tx\n") == 0


# Files


def test_inputs_travel_as_a_tar() -> None:
    with tarfile.open(fileobj=io.BytesIO(inputs_tar({"a": b"1", "b": b"22"}))) as tar:
        members = {member.name: (member.mode, member.size, member.uid) for member in tar}
    assert members == {
        "imagebuild": (0o755, 0, 0),
        "imagebuild/in": (0o755, 0, 0),
        "imagebuild/out": (0o1777, 0, 0),
        "imagebuild/in/a": (0o444, 1, 0),
        "imagebuild/in/b": (0o444, 2, 0),
    }


def left_tar(*members: tuple[str, bytes, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_what_a_container_left_is_read_from_a_tar() -> None:
    found = collect_tar(
        io.BytesIO(
            left_tar(
                ("out/", tarfile.DIRTYPE, b""),
                ("out/deep/a", tarfile.REGTYPE, b"1"),
                ("out/link", tarfile.SYMTYPE, b""),
                ("out/hard", tarfile.LNKTYPE, b""),
                ("out/../../escape", tarfile.REGTYPE, b"2"),
            )
        )
    )
    assert found.files == {"deep/a": b"1"}
    assert found.left_out == ("hard", "link")
    assert found.machine() == {"filesLeftOut": ["hard", "link"]}


def test_a_tar_that_breaks_off_gives_what_came_before() -> None:
    whole = left_tar(("out/a", tarfile.REGTYPE, b"1" * 512), ("out/b", tarfile.REGTYPE, b"2" * 5000))
    found = collect_tar(io.BytesIO(whole[:3000]))
    assert found.files == {"a": b"1" * 512}
    assert "(the archive broke off)" in found.left_out


def test_too_much_is_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "OUTPUT_LIMIT", 10)
    monkeypatch.setattr(files, "TOTAL_LIMIT", 25)
    for name, size in (("a", 10), ("b", 11), ("c", 2), ("d", 9)):
        (tmp_path / name).write_bytes(b"x" * size)
    found = collect_folder(tmp_path)
    assert sorted(found.files) == ["a", "c"]
    assert found.left_out == ("b", "d")


def test_a_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    deep = tmp_path / "run" / "work" / "work"
    deep.mkdir(parents=True)
    (deep / "f").write_text("x")
    deep.chmod(0)
    deep.parent.chmod(0o500)
    remove_tree(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    remove_tree(tmp_path / "run")


# Places


def test_a_site_adds_to_every_job_and_the_jobs_own_wins() -> None:
    site = Site("s", "podman", scratch="/s", mounts=("/a:/b", "/c:/d:ro"), env={"X": "site", "Y": "site"})
    place = place_of(site, None, False)
    assert place.scratch == Path("/s")
    assert place_of(site, Path("/t"), False).scratch == Path("/t")
    job = laid_out(Job(("x",), 1, {"X": "job"}, mounts=(Mount(Path("/e"), "/f"),)), place)
    assert job.environment == {"X": "job", "Y": "site"}
    assert job.mounts == (Mount(Path("/a"), "/b", False), Mount(Path("/c"), "/d", True), Mount(Path("/e"), "/f"))
    assert mount_of("/a:/b:rw") == Mount(Path("/a"), "/b", False)
    assert laid_out(Job(("x",), 1), Place(), network=True).network


def test_a_folder_of_ones_own_goes_with_whoever_has_it(tmp_path: Path) -> None:
    closed, forgotten, named = Scratch(None), Scratch(None), Scratch(tmp_path / "named")
    folders = [closed.folder(), forgotten.folder()]
    assert closed.folder() == folders[0]
    closed.close()
    del forgotten
    gc.collect()
    assert not any(folder.exists() for folder in folders)
    assert named.folder().is_dir()
    named.close()
    assert named.folder().is_dir()


def test_the_environment_of_a_job() -> None:
    job = Job(("x",), 1, {"A": "job", "EMPTY": ""}, ("B", "C"))
    assert job_environment(["A=image", "B=2", "D=a=b", "broken"], job, "/i", "/o") == {
        "A": "job",
        "D": "a=b",
        "EMPTY": "",
        "IMAGEBUILD_IN": "/i",
        "IMAGEBUILD_OUT": "/o",
    }


# Images


def whole(source: ImageSource, descriptor: Descriptor) -> bytes:
    with opened_blob(source, descriptor, "layer") as stream:
        return stream.read()


def test_layers_that_a_sparse_layout_leaves_out_come_from_the_base(tmp_path: Path) -> None:
    lower, upper = LayerSpec((File("a", b"1"),)), LayerSpec((File("b", b"2"),))
    base = make_image(ImageSpec((lower,)))
    write_layout(tmp_path / "base", {"v1": base})
    content = "sha256:" + "a" * 64
    labels = {BASE_NAME: f"oci:{tmp_path}/base:v1", BASE_DIGEST: str(base.digest), CONTENT_ID: content}
    made = make_image(ImageSpec((lower, upper), config={"Labels": labels}))
    write_layout(tmp_path / "sparse", {"mine": made})
    (tmp_path / "sparse" / blob_name(made.layers[0].descriptor.digest)).unlink()

    image = open_image(f"oci:{tmp_path}/sparse:mine", AMD64, Opener(tmp_path))
    assert (image.reference, image.digest, image.index) == (f"oci:{tmp_path}/sparse:mine", made.digest, None)
    assert image.content_id == Digest.parse(content)
    for layer in made.layers:
        assert image.source.has_blob(layer.descriptor)
        assert whole(image.source, layer.descriptor) == layer.blob

    alone = checked_image(LayoutSource(tmp_path / "sparse"), "mine", AMD64)
    with pytest.raises(UnavailableError, match=r"oci\.blob-missing"):
        whole(alone.source, made.layers[0].descriptor)
    given = checked_image(LayoutSource(tmp_path / "sparse"), "mine", AMD64, base=MemorySource(base))
    assert whole(given.source, made.layers[0].descriptor) == made.layers[0].blob


def test_an_engine_gets_a_layout_that_borrows_what_lies_here(tmp_path: Path) -> None:
    lower, upper = LayerSpec((File("a", b"1"),)), LayerSpec((File("b", b"2"),))
    made = make_image(ImageSpec((lower, upper)))
    write_layout(tmp_path / "mine", {"v1": made})
    (tmp_path / "mine" / blob_name(made.layers[0].descriptor.digest)).unlink()
    image = checked_image(LayoutSource(tmp_path / "mine"), "v1", AMD64, base=MemorySource(made))
    borrowed_layout(image, child_of(image), tmp_path / "borrowed")
    source = LayoutSource(tmp_path / "borrowed")
    assert source.resolve(engine_name(image)).digest == made.digest
    paths = [source.blob_path(layer.descriptor.digest) for layer in made.layers]
    assert [path.is_symlink() for path in paths] == [False, True]
    assert [path.read_bytes() for path in paths] == [layer.blob for layer in made.layers]
