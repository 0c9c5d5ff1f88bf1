"""Stages learned, proved, stored and found again, with a builder that is not one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_builder import FakeBuilder, no_builder

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.buildkit import Builder
from imagebuild.build.events import Emitter, Event
from imagebuild.build.stage import StageMaker, StageSettings
from imagebuild.build.stage_artifact import make_artifact
from imagebuild.content.digest import Digest
from imagebuild.content.store import ContentStore
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci.layout import LayoutSink, LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import PathReference
from imagebuild.overlay.changes import StageChange

AMD64, ARM64 = Platform.parse("linux/amd64"), Platform.parse("linux/arm64")
STAGE = StageChange("Dockerfiles/ext.Dockerfile", {"/out/m.so": "root/m.so"}, reproducible=True)
LOOSE = replace(STAGE, reproducible=False)
SO = {"/out/m.so!": b"\x7fELF compiled"}


@dataclass
class Bench:
    """A workspace with one stage, and machines that build it: each has a cache of its own."""

    folder: Path
    events: list[Event] = field(default_factory=list)
    caches: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        (self.folder / "Dockerfiles" / "ext").mkdir(parents=True)
        self.write("int a;\n")
        pin = Digest.of(b"base")
        (self.folder / "Dockerfiles" / "ext.Dockerfile").write_text(
            f"FROM debian@{pin} AS b\nCOPY a.c /\nRUN cc\nFROM scratch\nCOPY --from=b /out /out\n"
        )

    def write(self, text: str) -> None:
        (self.folder / "Dockerfiles" / "ext" / "a.c").write_text(text)

    def machine(self, builder: Callable[[], Builder] | FakeBuilder, cache: str | None = None) -> StageMaker:
        cache = cache or f"cache{next(self.caches)}"
        store = ArtefactStore(ContentStore(self.folder / cache / "artefacts"), Emitter())
        ticks = itertools.count()
        settings = StageSettings(
            self.folder,
            self.folder / cache / "stages",
            lambda reference: LayoutSource(self.folder / str(getattr(reference, "path", ""))),
            (lambda: builder) if isinstance(builder, FakeBuilder) else builder,
            lambda: next(ticks) // 3,
            lambda seconds: None,
        )
        return StageMaker(settings, store, Emitter(self.events.append))

    def stored(
        self, builder: FakeBuilder, *platforms: Platform, change: StageChange = LOOSE, **more: Any
    ) -> PathReference:
        """An artifact of one machine's builds, in the layout `artifacts`."""
        maker = self.machine(builder)
        results = [replace(maker.make(change, platform), **more) for platform in platforms]
        image = make_artifact(results, maker.store)
        LayoutSink(self.folder / "artifacts").store(image, "ext", force=True)
        return PathReference("oci", "artifacts", "ext", image.top.descriptor.digest)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "space")


def test_two_builds_prove_a_reproducible_stage(bench: Bench) -> None:
    builder = FakeBuilder([SO])
    maker = bench.machine(builder)
    found = maker.learn(STAGE, AMD64)
    assert [(o.path, o.sha256, o.executable) for o in found.result.outputs] == [
        ("/out/m.so", Digest.of(SO["/out/m.so!"]), True)
    ]
    assert (found.proof, found.not_proven) == ("two-builds", "")
    assert len(builder.built) == 2
    kept = maker.store.get(Digest.of(SO["/out/m.so!"]))
    assert kept is not None
    (wanted, context), _ = builder.built
    assert context == {"a.c": b"int a;\n"}
    assert (wanted.network, wanted.platform) == ("none", AMD64)
    assert wanted.arguments == {"SOURCE_DATE_EPOCH": "315532800"}
    assert [event.name for event in bench.events if event.name in ("stage.building", "stage.built")] == [
        "stage.building",
        "stage.built",
    ] * 2


def test_the_second_build_begins_in_another_second(bench: Bench) -> None:
    slept: list[float] = []
    maker = bench.machine(FakeBuilder([SO]))
    times = iter([5, 5, 5, 6])
    maker.settings = replace(maker.settings, now=lambda: next(times), sleep=slept.append)
    maker.learn(STAGE, AMD64)
    assert len(slept) == 2


@pytest.mark.parametrize("second", [{"/out/m.so!": b"other"}, {"/out/m.so": SO["/out/m.so!"]}])
def test_two_builds_that_differ_are_refused_by_name(bench: Bench, second: dict[str, bytes]) -> None:
    with pytest.raises(RefusedError) as caught:
        bench.machine(FakeBuilder([SO, second])).learn(STAGE, AMD64)
    assert caught.value.code == "stage.not-reproducible"
    assert "/out/m.so: " in (caught.value.found or "")
    assert caught.value.details["files"] == ["/out/m.so"]


def test_what_was_proved_is_not_built_again(bench: Bench) -> None:
    bench.machine(FakeBuilder([SO]), "shared").learn(STAGE, AMD64)
    assert bench.machine(no_builder, "shared").learn(STAGE, AMD64).proof == "two-builds"
    builder = FakeBuilder([SO])
    bench.machine(builder, "shared").learn(STAGE, ARM64)
    bench.write("int b;\n")
    bench.machine(builder, "shared").learn(STAGE, AMD64)
    assert len(builder.built) == 4


def test_a_record_without_its_outputs_counts_for_nothing(bench: Bench) -> None:
    maker = bench.machine(FakeBuilder([SO]), "shared")
    digest = maker.learn(STAGE, AMD64).result.outputs[0].sha256
    path = maker.store.store.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    builder = FakeBuilder([SO])
    bench.machine(builder, "shared").learn(STAGE, AMD64)
    assert len(builder.built) == 2


@pytest.mark.parametrize("damage", [b"{", b'{"schemaVersion":1}', b"[]"])
def test_a_damaged_record_counts_for_nothing(bench: Bench, damage: bytes) -> None:
    maker = bench.machine(FakeBuilder([SO]), "shared")
    maker.learn(STAGE, AMD64)
    (record,) = maker.settings.records.iterdir()
    record.write_bytes(damage)
    builder = FakeBuilder([SO])
    bench.machine(builder, "shared").learn(STAGE, AMD64)
    assert len(builder.built) == 2


def test_one_build_proves_nothing(bench: Bench) -> None:
    builder = FakeBuilder([SO])
    bench.machine(builder, "shared").make(LOOSE, AMD64)
    assert len(builder.built) == 1
    bench.machine(builder, "shared").learn(STAGE, AMD64)
    assert len(builder.built) == 3


def test_a_stage_that_is_not_reproducible_needs_its_artifact(bench: Bench) -> None:
    builder = FakeBuilder([SO])
    with pytest.raises(RefusedError) as caught:
        bench.machine(builder).learn(LOOSE, AMD64)
    assert caught.value.code == "stage.artifact-missing"
    assert "imagebuild overlay stage" in (caught.value.hint or "")
    assert builder.built == []


def test_outputs_come_from_the_artifact(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([SO]), AMD64)
    maker = bench.machine(no_builder)
    found = maker.learn(replace(LOOSE, artifact=reference), AMD64)
    assert found.proof == "artifact"
    kept = maker.store.get(found.result.outputs[0].sha256)
    assert kept is not None
    assert kept.read() == SO["/out/m.so!"]


def test_the_artifact_is_of_this_platform_and_this_definition(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([SO]), AMD64)
    change = replace(LOOSE, artifact=reference)
    with pytest.raises(RefusedError) as caught:
        bench.machine(no_builder).learn(change, ARM64)
    assert (caught.value.code, caught.value.found) == ("stage.artifact-platform", "linux/amd64")
    bench.write("int other;\n")
    with pytest.raises(RefusedError) as caught:
        bench.machine(no_builder).learn(change, AMD64)
    assert caught.value.code == "stage.artifact-stale"


def test_a_proof_is_the_artifact_s_word_where_nothing_can_build(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([SO]), AMD64, change=STAGE)
    found = bench.machine(no_builder).learn(replace(STAGE, artifact=reference), AMD64)
    assert found.proof == "artifact"
    assert "artifact's word" in found.not_proven
    with pytest.raises(UnavailableError) as caught:
        bench.machine(no_builder).learn(STAGE, AMD64)
    assert caught.value.code == "stage.no-builder"


def test_an_artifact_that_differs_from_two_builds_is_refused(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([{"/out/m.so!": b"other"}]), AMD64)
    with pytest.raises(RefusedError) as caught:
        bench.machine(FakeBuilder([SO])).learn(replace(STAGE, artifact=reference), AMD64)
    assert caught.value.code == "stage.artifact-differs"
    same = bench.stored(FakeBuilder([SO]), AMD64)
    assert bench.machine(FakeBuilder([SO])).learn(replace(STAGE, artifact=same), AMD64).proof == "two-builds"


def test_an_altered_output_is_not_taken(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([SO]), AMD64)
    blob = bench.folder / "artifacts" / "blobs" / "sha256" / Digest.of(SO["/out/m.so!"]).hex
    blob.write_bytes(b"\x7fELF backdoor")
    maker = bench.machine(no_builder)
    with pytest.raises(RefusedError) as caught:
        maker.learn(replace(LOOSE, artifact=reference), AMD64)
    assert caught.value.code == "content.digest-mismatch"
    assert list(maker.store.store.entries()) == []


def test_an_artifact_that_lies_about_what_it_holds(bench: Bench) -> None:
    """Its maker can write any description; what it says must hang together."""
    maker = bench.machine(FakeBuilder([SO]))
    result = maker.make(LOOSE, AMD64)
    for lie in (replace(result, outputs=()), replace(result, outputs=(replace(result.outputs[0], path="/out/x"),))):
        image = make_artifact([lie], maker.store)
        LayoutSink(bench.folder / "lies").store(image, "x", force=True)
        reference = PathReference("oci", "lies", "x", image.top.descriptor.digest)
        with pytest.raises(InputError) as caught:
            bench.machine(no_builder).learn(replace(LOOSE, artifact=reference), AMD64)
        assert caught.value.code == "stage.bad-artifact"


WANTED = {"/out/m.so": Digest.of(SO["/out/m.so!"])}


def test_a_locked_build_takes_what_is_at_hand(bench: Bench) -> None:
    maker = bench.machine(FakeBuilder([SO]), "shared")
    maker.learn(STAGE, AMD64)
    bench.machine(no_builder, "shared").provide(STAGE, AMD64, WANTED)


def test_a_locked_build_takes_the_artifact(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([SO]), AMD64)
    maker = bench.machine(no_builder)
    maker.provide(replace(LOOSE, artifact=reference), AMD64, WANTED)
    assert maker.store.get(WANTED["/out/m.so"]) is not None


def test_a_locked_build_builds_a_reproducible_stage_again(bench: Bench) -> None:
    builder = FakeBuilder([SO])
    maker = bench.machine(builder)
    maker.provide(STAGE, AMD64, WANTED)
    assert len(builder.built) == 1
    with pytest.raises(RefusedError) as caught:
        bench.machine(FakeBuilder([{"/out/m.so": b"other"}])).provide(STAGE, AMD64, WANTED)
    assert caught.value.code == "stage.output-differs"


def test_a_lost_artifact_of_a_reproducible_stage_is_built_again(bench: Bench) -> None:
    gone = PathReference("oci", "nowhere", None, Digest.of(b"gone"))
    maker = bench.machine(FakeBuilder([SO]))
    maker.provide(replace(STAGE, artifact=gone), AMD64, WANTED)
    assert maker.store.get(WANTED["/out/m.so"]) is not None


def test_a_locked_build_takes_no_altered_output(bench: Bench) -> None:
    reference = bench.stored(FakeBuilder([SO]), AMD64)
    blob = bench.folder / "artifacts" / "blobs" / "sha256" / Digest.of(SO["/out/m.so!"]).hex
    blob.write_bytes(b"\x7fELF backdoor")
    with pytest.raises(RefusedError) as caught:
        bench.machine(FakeBuilder([SO])).provide(replace(STAGE, artifact=reference), AMD64, WANTED)
    assert caught.value.code == "content.digest-mismatch"


@pytest.mark.parametrize("reproducible", [True, False])
def test_what_is_missing_and_what_was_tried_is_told(bench: Bench, reproducible: bool) -> None:
    gone = PathReference("oci", "nowhere", None, Digest.of(b"gone"))
    for artifact, word in ((gone, "oci:nowhere@"), (None, "names no artifact")):
        change = replace(STAGE, reproducible=reproducible, artifact=artifact)
        with pytest.raises(UnavailableError) as caught:
            bench.machine(no_builder).provide(change, AMD64, WANTED)
        error = caught.value
        assert error.code == "stage.outputs-missing"
        assert error.exit_code == 3
        assert str(WANTED["/out/m.so"]) in (error.expected or "")
        assert word in (error.found or "")
        assert ("no docker in PATH" in (error.found or "")) is reproducible


def test_an_artifact_of_two_platforms_made_on_two_machines(bench: Bench) -> None:
    first = bench.stored(FakeBuilder([SO]), AMD64)
    change = replace(LOOSE, artifact=first)
    other = bench.machine(FakeBuilder([{"/out/m.so!": b"for arm"}]))
    from imagebuild.build.stage_definition import read_definition

    ids = {platform: read_definition(bench.folder, LOOSE, platform).id for platform in (AMD64, ARM64)}
    known = other.artifact_results(change, ids)
    assert set(known) == {AMD64}
    image = make_artifact([*known.values(), other.make(change, ARM64)], other.store)
    LayoutSink(bench.folder / "artifacts").store(image, "ext", force=True)
    both = replace(LOOSE, artifact=PathReference("oci", "artifacts", "ext", image.top.descriptor.digest))
    laptop = bench.machine(no_builder)
    assert laptop.learn(both, AMD64).result.outputs[0].sha256 == Digest.of(SO["/out/m.so!"])
    assert laptop.learn(both, ARM64).result.outputs[0].sha256 == Digest.of(b"for arm")
    bench.write("int new;\n")
    stale = {platform: read_definition(bench.folder, LOOSE, platform).id for platform in (AMD64, ARM64)}
    assert other.artifact_results(both, stale) == {}


def test_other_tools_see_the_outputs_names(bench: Bench) -> None:
    maker = bench.machine(FakeBuilder([SO]))
    image = make_artifact([maker.make(LOOSE, AMD64)], maker.store)
    manifest = json.loads(image.manifests[0].raw)
    assert manifest["artifactType"] == "application/vnd.imagebuild.stage.v1"
    assert manifest["layers"][0]["annotations"] == {"org.opencontainers.image.title": "out/m.so"}
    assert json.loads(image.top.raw)["manifests"][0]["platform"] == {"architecture": "amd64", "os": "linux"}
    again = make_artifact([maker.make(LOOSE, AMD64)], maker.store)
    assert again.top.raw == image.top.raw
