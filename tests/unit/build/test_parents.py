"""Folders above what we write (GoogleContainerTools/jib#1270; docs/adr/0011)."""

from imagebuild.oci.platform import Platform
from imagebuild.testing.images import Folder, ImageSpec, make_image
from imagebuild.testing.small_engine import CONFIG, SITE, engine_layers

AMD64 = Platform.parse("linux/amd64")


def folders(locked) -> dict[str, tuple[int, int, int, int, str]]:
    """Those that are written for the changes; the SBOM's own folder is new and always is."""
    (platform,) = locked.lock.inputs.platforms
    return {
        item.path: (item.mode, item.uid, item.gid, item.mtime, item.origin)
        for item in platform.changes
        if item.kind == "directory" and not item.path.endswith(".dist-info/sboms")
    }


def with_folder(folder: Folder):
    """The small engine's base, one of its folders as another layer on top leaves it."""
    from imagebuild.testing.images import LayerSpec
    from imagebuild.testing.small_engine import with_folders

    above = [item for item in with_folders([folder]) if getattr(item, "path", "") != folder.path]
    return make_image(ImageSpec((*engine_layers(AMD64), LayerSpec((*above, folder))), config=CONFIG))


def test_plain_folders_of_the_base_get_no_entry(bench) -> None:
    assert folders(bench().lock()) == {}


def test_a_folder_that_is_not_plain_is_written_as_the_base_has_it(bench) -> None:
    special = Folder(f"{SITE}/engine", mode=0o1775, uid=1000, gid=50, mtime=1_700_000_000)
    b = bench(with_folder(special))
    assert folders(b.lock()) == {f"/{SITE}/engine": (0o1775, 1000, 50, 1_700_000_000, "parent")}


def test_a_folder_older_than_1980_is_written_with_a_time_that_zip_tools_take(bench) -> None:
    b = bench(with_folder(Folder(f"{SITE}/engine", mode=0o700, mtime=0)))
    assert folders(b.lock())[f"/{SITE}/engine"][3] == 315_532_800
