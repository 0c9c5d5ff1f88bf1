"""How deep locking reads a base, and what it says of what it did not read (images.md, Reading 2)."""

import json
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import File, ImageSpec, LayerSpec, Link, Whiteout, make_image
from imagebuild.testing.small_engine import CONFIG, EXTRA, SITE, engine_layers, with_folders

AMD64 = Platform.parse("linux/amd64")
ENGINE = 2
"""The number of the engine's layer, from 0."""


def facts(locked: Any) -> dict[str, Any]:
    (platform,) = locked.lock.inputs.platforms
    return {fact.change: fact for fact in platform.facts if fact.change}


def test_layers_below_the_engine_are_not_read(bench) -> None:
    b = bench()
    locked = b.lock()
    stack = [layer.descriptor.digest for layer in b.space.base.layers]
    assert b.layers_read() == [stack[3], stack[2]]
    (platform,) = locked.lock.inputs.platforms
    assert [layer.read for layer in platform.layers] == [False, False, True, True]
    assert locked.read_bytes == sum(layer.descriptor.size for layer in b.space.base.layers[2:])


def test_what_was_not_read_is_not_proven_and_complete_settles_it(bench) -> None:
    b = bench()
    (platform,) = b.lock().lock.inputs.platforms
    assert any("sitecustomize" in text for text in platform.not_proven)
    assert f"/{SITE}/engine/extra.py: absent down to the layer that holds its package" in platform.not_proven
    locked = b.lock(complete=True)
    (platform,) = locked.lock.inputs.platforms
    assert platform.not_proven == ()
    assert all(layer.read for layer in platform.layers)


def test_a_new_path_is_absent_above_or_absent(bench) -> None:
    b = bench()
    assert facts(b.lock())["engine/extra.py"].state == "absent-above"
    assert facts(b.lock(complete=True))["engine/extra.py"].state == "absent"


def test_a_whiteout_above_proves_absence_without_reading_on(bench) -> None:
    stack = engine_layers(AMD64)
    gone = LayerSpec((*with_folders([File(f"{SITE}/engine/data/more", b"")]), Whiteout(f"{SITE}/engine/extra.py")))
    below = LayerSpec(with_folders([File(f"{SITE}/engine/extra.py", b"old")]))
    b = bench(make_image(ImageSpec((*stack[:2], below, stack[2], gone), config=CONFIG)))
    locked = b.lock()
    assert facts(locked)["engine/extra.py"].state == "absent"
    assert [layer.read for layer in locked.lock.inputs.platforms[0].layers] == [False, False, False, True, True]


def test_a_file_that_is_not_in_the_engines_layer_is_looked_for_below(bench) -> None:
    """A replaced file must be found: the reader goes on until a layer shows it."""
    stack = engine_layers(AMD64)
    below = LayerSpec(with_folders([File(f"{SITE}/engine/vendored.py", b"old\n")]))
    b = bench(make_image(ImageSpec((*stack[:1], below, *stack[1:]), config=CONFIG)))
    old = Digest.of(b"old\n")
    b.space.write_overlay(
        changes="  - file: files/v.py\n    to: engine/vendored.py\n",
        files={"files/v.py": b"new\n"},
        guards=f"  engine/vendored.py: {{preimage: {old}, postimage: {Digest.of(b'new' + bytes([10]))}}}\n",
    )
    locked = b.lock()
    fact = facts(locked)["engine/vendored.py"]
    assert (fact.state, fact.layer, fact.sha256) == ("present", b.space.base.layers[1].descriptor.digest, old)
    assert [layer.read for layer in locked.lock.inputs.platforms[0].layers] == [False, True, True, True, True]


def test_a_path_that_the_record_lists_is_never_absent_above(bench) -> None:
    """The engine's RECORD names it, so it may lie in a layer that was not read: the reader looks, and then it is not new."""
    stack = engine_layers(AMD64, package={**_package(), "engine/extra.py": b"listed\n"})
    engine = LayerSpec(tuple(item for item in stack[2].items if item.path != f"{SITE}/engine/extra.py"))
    below = LayerSpec(with_folders([File(f"{SITE}/engine/extra.py", b"listed\n")]))
    b = bench(make_image(ImageSpec((*stack[:2], below, engine, stack[3]), config=CONFIG)))
    b.space.write_overlay(guards=f"  engine/extra.py: {{preimage: absent, postimage: {Digest.of(EXTRA)}}}\n")
    with pytest.raises(RefusedError) as caught:
        b.lock()
    assert caught.value.code == "overlay.path-exists"


def _package() -> dict[str, bytes]:
    from imagebuild.testing.small_engine import PACKAGE

    return dict(PACKAGE)


def test_a_link_above_decides_where_the_file_is(bench) -> None:
    """`dist-packages/engine` is a link in the top layer: the overlay is written to the place that it leads to."""
    stack = engine_layers(AMD64)
    moved = tuple(
        _moved(item)
        for item in stack[2].items
        if item.path.startswith(f"{SITE}/engine/") or item.path == f"{SITE}/engine"
    )
    rest = tuple(item for item in stack[2].items if not item.path.startswith(f"{SITE}/engine/"))
    rest = tuple(item for item in rest if item.path != f"{SITE}/engine")
    engine = LayerSpec((*with_folders([*moved]), *rest, Link(f"{SITE}/engine", "/opt/engine")))
    b = bench(make_image(ImageSpec((*stack[:2], engine, stack[3]), config=CONFIG)))
    locked = b.lock(complete=True)
    (platform,) = locked.lock.inputs.platforms
    paths = {item.path for item in platform.changes if item.origin.startswith("change:")}
    assert paths == {f"/opt/engine/{name}.py" for name in ("envs", "extra", "legacy", "scheduler")}
    assert platform.roots[0].folder == "/opt/engine"


def _moved(item: Any) -> Any:
    from dataclasses import replace

    return replace(item, path="opt/engine" + item.path.removeprefix(f"{SITE}/engine"))


def test_facts_are_learned_once_for_ever(bench) -> None:
    b = bench()
    b.lock(complete=True)
    assert len(b.layers_read()) == 4
    b.source.reads.clear()
    again = b.lock(complete=True)
    assert b.layers_read() == []
    assert again.read_bytes == 0


def test_a_layer_is_read_again_only_for_bytes_that_are_not_at_hand(bench) -> None:
    """Another overlay asks for a file of which only the facts were kept."""
    b = bench()
    b.lock(complete=True)
    b.source.reads.clear()
    b.space.write_overlay(changes='  - edit: {path: engine/__init__.py, find: "1.0", replace: "1.0+tuned"}\n', files={})
    b.lock()
    assert b.layers_read() == [b.space.base.layers[ENGINE].descriptor.digest]


def test_a_layer_that_two_platforms_share_is_read_once(bench) -> None:
    b = bench(platforms=("linux/amd64", "linux/arm64"))
    b.lock(complete=True)
    read = b.layers_read()
    assert len(read) == len(set(read)) == len({layer.descriptor.digest for layer in b.space.base.layers})


def test_altered_facts_in_the_cache_count_as_absent(bench) -> None:
    b = bench()
    first = b.lock()
    for path in (b.space.cache / "facts").rglob("*.facts"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    b.source.reads.clear()
    assert b.lock().lock == first.lock
    assert len(b.layers_read()) == 2


def test_an_altered_layer_is_refused_and_nothing_is_kept_of_it(bench) -> None:
    b = bench()
    layer = b.space.base.layers[ENGINE].descriptor.digest
    data = bytearray(b.source.blobs[layer])
    data[-20] ^= 1
    b.source.blobs[layer] = bytes(data)
    with pytest.raises(RefusedError):
        b.lock()
    assert b.facts.load(layer) is None
    assert b.contents.get(Digest.of(_package()["engine/envs.py"])) is None


def test_a_layer_that_is_not_what_the_config_says_is_refused(bench) -> None:
    made = make_image(ImageSpec(engine_layers(AMD64), config=CONFIG, extra_config={}))
    other = make_image(ImageSpec((LayerSpec((File("x"),)),)))
    config = json.loads(made.blobs[Digest.parse(json.loads(made.raw)["config"]["digest"])])
    diff_ids = config["rootfs"]["diff_ids"]
    diff_ids[2] = str(other.layers[0].diff_id)
    wrong = make_image(
        ImageSpec(
            engine_layers(AMD64), config=CONFIG, extra_config={"rootfs": {"type": "layers", "diff_ids": diff_ids}}
        )
    )
    with pytest.raises(RefusedError) as caught:
        bench(wrong).lock()
    assert caught.value.code == "base.diff-id-mismatch"
    assert "layer 3 of 4" in caught.value.message
