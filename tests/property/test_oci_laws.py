"""Laws of the OCI package: what is read is written back, and what is not ours is never disturbed."""

import io
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci import media_types as mt
from imagebuild.oci.assemble import derive_manifest
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import ImageConfig, Manifest
from imagebuild.oci.json_text import NumberText, dump, parse
from imagebuild.oci.layout import LayoutSink, LayoutSource
from imagebuild.oci.oci_archive import OciArchiveSink, OciArchiveSource
from imagebuild.oci.plain_tar import Forward, TarWriter, index_members
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import (
    DigestReference,
    PathReference,
    Repository,
    TagReference,
    parse_reference,
)
from imagebuild.oci.tree import fetch_blob, read_image_tree
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, make, make_image
from imagebuild.testing.memory import MemorySource, as_image

LAW = settings(deadline=None, max_examples=60)
SLOW = settings(deadline=None, max_examples=25)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,5})?([eE][-+]?[0-9]{1,3})?", fullmatch=True).map(NumberText)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
KNOWN = {"architecture", "os", "variant", "created", "config", "rootfs", "history", "env", "labels", "workingdir"}
KNOWN |= {"user", "entrypoint", "cmd"}
UNKNOWN = st.dictionaries(TEXT.filter(lambda key: key.casefold() not in KNOWN), JSON, max_size=5)


@LAW
@given(JSON)
def test_json_text_survives(value: Any) -> None:
    text = dump(value)
    assert dump(parse(text, "t")) == text
    assert parse(text, "t") == value


@LAW
@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_an_input_error(data: bytes) -> None:
    with suppress(InputError):
        assert parse(dump(parse(data, "t")), "t") == parse(data, "t")


def shuffled(known: dict[str, Any], unknown: dict[str, Any], order: int) -> dict[str, Any]:
    items = [*known.items(), *unknown.items()]
    turn = order % len(items)
    return dict(items[turn:] + items[:turn])


@LAW
@given(UNKNOWN, UNKNOWN, st.lists(UNKNOWN, max_size=3), st.integers(0, 20), st.booleans(), st.integers(0, 2))
def test_a_derived_config_keeps_what_it_does_not_know(
    top: dict[str, Any],
    section: dict[str, Any],
    history: list[dict[str, Any]],
    order: int,
    with_history: bool,
    new: int,
) -> None:
    history = [{k: v for k, v in line.items() if k not in ("created_by", "empty_layer")} for line in history]
    known: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2020-01-01T00:00:00Z",
        "rootfs": {"type": "layers", "diff_ids": [str(Digest.of(b"1"))]},
        "config": shuffled({"Env": ["A=1"], "Labels": {"a": "b"}}, section, order),
    }
    if with_history:
        known["history"] = history
    value = shuffled(known, top, order)
    config = ImageConfig.parse(dump(value))
    base = Descriptor(mt.OCI_LAYER_GZIP, Digest.of(b"l"), 1)
    manifest_raw = dump(
        {
            "layers": [base.to_json()],
            "config": Descriptor(mt.OCI_CONFIG, config.digest, 1).to_json(),
            "schemaVersion": 2,
        }
    )
    layers = [
        (Descriptor(mt.OCI_LAYER_GZIP, Digest.of(bytes([n])), n), Digest.of(bytes([n])), "new") for n in range(new)
    ]
    raw, _ = derive_manifest(
        Manifest.parse(manifest_raw, mt.OCI_MANIFEST),
        config,
        layers,
        created=1_800_000_000,
        env=["B=2"],
        labels={"c": "d"},
    )
    derived = parse(raw, "t")
    assert [k for k in derived if k in value] == list(value)
    assert set(derived) - set(value) <= {"history"}
    for key in set(value) - {"created", "rootfs", "config", "history"}:
        assert dump(derived[key]) == dump(value[key])
    assert list(derived["config"]) == list(value["config"])
    for key in section:
        assert dump(derived["config"][key]) == dump(section[key])
    assert (derived["config"]["Env"], derived["config"]["Labels"]) == (["B=2"], {"a": "b", "c": "d"})
    if with_history or new:
        kept = derived["history"][: len(derived["history"]) - new]
        assert dump(kept) == dump(history if with_history else [])
    assert len(derived["rootfs"]["diff_ids"]) == 1 + new


COMPRESSIONS = st.sampled_from(["none", "stored", "gzip", "zstd"])
LAYERS = st.lists(
    st.builds(LayerSpec, st.tuples(st.builds(File, st.just("f"), st.binary(max_size=40))), compression=COMPRESSIONS),
    max_size=3,
).map(tuple)
IMAGES = st.builds(ImageSpec, LAYERS, history=st.sampled_from(["full", "missing", "short", "all-empty", "with-empty"]))
INDEXES = st.builds(
    lambda one, other, attested: IndexSpec(
        (one, ImageSpec(other.layers, Platform("linux", "arm64"))), attestations=attested
    ),
    IMAGES,
    IMAGES,
    st.booleans(),
)


@SLOW
@given(st.one_of(IMAGES, INDEXES), st.integers(0, 3), st.sampled_from([None, "v1", "docker.io/a/b:c"]))
def test_what_is_stored_is_read(spec: Any, own: int, name: str | None) -> None:
    made = make(spec)
    image = as_image(made, own=min([own, *(len(i.layers) for i in made.images or (made,))]), base=MemorySource(made))
    with tempfile.TemporaryDirectory() as folder:
        layout, archive = Path(folder, "l"), Path(folder, "a")
        LayoutSink(layout).store(image, name, complete=True)
        OciArchiveSink(archive).store(image, name)
        sparse = LayoutSink(Path(folder, "s")).store(image, name)
        own_digests = {blob.descriptor.digest for blob in image.own}
        assert set(sparse.missing_blobs) == {layer.digest for layer in image.base_layers} - own_digests
        for source in (LayoutSource(layout), OciArchiveSource(archive)):
            assert source.resolve(name).digest == source.resolve(None).digest == made.digest
            tree = read_image_tree(source, name)
            assert [c.manifest.raw for c in tree.children.values()] == [i.raw for i in made.images or (made,)]
            for layer in made.layers:
                assert fetch_blob(source, layer.descriptor, "layer", 1 << 20) == layer.blob


@SLOW
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", None])), min_size=1, max_size=6))
def test_a_layout_holds_the_last_image_of_each_name(steps: list[tuple[bool, str | None]]) -> None:
    images = {flag: make_image(ImageSpec((LayerSpec((File(str(flag)),)),))) for flag in (False, True)}
    model: dict[str | None, Digest] = {}
    with tempfile.TemporaryDirectory() as folder:
        for flag, name in steps:
            result = LayoutSink(Path(folder)).store(as_image(images[flag]), name, force=True)
            before = model.get(name)
            assert result.previous == (before if before != images[flag].digest else None)
            model[name] = images[flag].digest
        source = LayoutSource(Path(folder))
        entries = {e.annotations.get("org.opencontainers.image.ref.name"): e.digest for e in source.index().manifests}
        assert entries == model


HOSTS = st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){1,2}(:[1-9][0-9]{0,3})?", fullmatch=True)
PATHS = st.from_regex(r"[a-z0-9]{1,4}([._-][a-z0-9]{1,3})?(/[a-z0-9]{1,4}){1,2}", fullmatch=True)
TAGS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}", fullmatch=True)
DIGESTS = st.binary(max_size=3).map(Digest.of)
REPOSITORIES = st.builds(Repository, HOSTS, PATHS)
REFERENCES = st.one_of(
    st.builds(TagReference, REPOSITORIES, TAGS),
    st.builds(DigestReference, REPOSITORIES, DIGESTS, st.none() | TAGS),
    st.builds(
        PathReference,
        st.sampled_from(["oci", "oci-archive"]),
        st.from_regex(r"/?[ a-z.]{1,5}(/[a-z@ü]{1,5}){0,2}", fullmatch=True),
        st.none() | st.from_regex(r"[a-zA-Z0-9]{1,5}(([-._:@+]|--|/)[A-Za-z0-9]{1,5}){0,3}", fullmatch=True),
        st.none() | DIGESTS,
    ),
)


@LAW
@given(REFERENCES)
def test_a_reference_is_read_as_it_is_written(reference: Any) -> None:
    assert parse_reference(str(reference)) == reference


@LAW
@given(st.text(st.sampled_from("abAZ019:/@#.-_[]% sha256oci\n\0ü"), max_size=40) | st.text(max_size=40))
def test_any_text_is_a_reference_or_an_input_error(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InputError:
        return
    assert parse_reference(str(reference)) == reference


@SLOW
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}", fullmatch=True), st.binary(max_size=1500), max_size=6
    ),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_two_readers_of_tar_agree(files: dict[str, bytes], tar_format: int) -> None:
    ours, theirs = io.BytesIO(), io.BytesIO()
    writer = TarWriter(ours)
    for name, data in files.items():
        writer.add(name, data)
    writer.close()
    with tarfile.open(fileobj=theirs, mode="w", format=tar_format) as archive:
        for name, data in files.items():
            head = tarfile.TarInfo(name)
            head.size = len(data)
            archive.addfile(head, io.BytesIO(data))
    if files:
        for tar in (ours.getvalue(), theirs.getvalue()):
            found = index_members(Forward(io.BytesIO(tar), True), len(tar), "t")
            assert {n: tar[m.offset : m.offset + m.size] for n, m in found.items()} == files
    with tarfile.open(fileobj=io.BytesIO(ours.getvalue())) as archive:
        assert {m.name: archive.extractfile(m).read() for m in archive} == files  # type: ignore[union-attr]


@LAW
@given(st.binary(max_size=1600))
def test_any_bytes_are_a_tar_or_an_error_of_ours(data: bytes) -> None:
    with suppress(ImagebuildError):
        found = index_members(Forward(io.BytesIO(data), True), len(data), "t")
        assert all(member.offset + member.size <= len(data) for member in found.values())
