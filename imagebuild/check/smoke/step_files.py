"""Step 1, without a container: digests, platform, only declared differences, ELF machine, stale bytecode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from imagebuild.build.layer_data import image_path
from imagebuild.build.verification import Check, Verification
from imagebuild.build.verify_image import ImageVerifier, read_facts
from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob
from imagebuild.check.verdicts import Verdict
from imagebuild.content.canonical import document_json
from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import ImagebuildError, UnavailableError
from imagebuild.host import clock
from imagebuild.layer.compression import DecompressingReader, uncompressed_limit
from imagebuild.layer.entry import Kind, LayerFacts
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import layer_compression
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import Child, ImageTree, read_image_tree
from imagebuild.overlay.bytecode import parse_pyc_head
from imagebuild.overlay.elf import HEADER_SIZE, read_elf_header

STEP = "files"


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    return ()


class _Reader:
    """Reads our layers, and remembers what they hold."""

    def __init__(self) -> None:
        self.layers: list[tuple[Descriptor, LayerFacts]] = []

    def __call__(self, source: ImageSource, descriptor: Descriptor) -> LayerFacts:
        facts = read_facts(source, descriptor)
        self.layers.append((descriptor, facts))
        return facts


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    """Verifies the image against its lock, and looks at what our layers hold."""
    began = clock.monotonic()
    image, reader = request.image, _Reader()
    parts: list[Part] = []
    outputs: dict[str, bytes] = {}
    try:
        tree = read_image_tree(image.source, image.index or image.digest, None)
        verification = ImageVerifier(request.lock, request.documents, reader).verify(
            image.reference, image.source, tree
        )
        outputs["files/verification.json"] = document_json(verification.to_json())
        parts += _verified(verification, request)
        parts.append(_platform(request, tree))
        parts.append(_bytecode(reader.layers))
        parts.append(_machines(request, tree, reader.layers))
    except UnavailableError as error:
        parts.append(part("image", Verdict.NOT_RUN, f"it could not be read: {error.message}"))
    except ImagebuildError as error:
        parts.append(part("image", Verdict.FAILED, error.message))
    seconds = clock.monotonic() - began
    command = f"imagebuild verify {image.reference} --target {request.target.name}"
    facts = {"image": str(image.digest), "content_id": str(request.expected.content_id)}
    return StepResult(STEP, tuple(parts), seconds, request.deadline(STEP), (command,), facts, outputs=outputs)


def _verified(found: Verification, request: SmokeRequest) -> Iterator[Part]:
    """A part for each kind of check; a wrong digest makes the whole run void, since it is another image."""
    groups: dict[str, list[Check]] = {}
    for check in found.checks:
        groups.setdefault(check.code.removeprefix("verify."), []).append(check)
    for name, checks in groups.items():
        bad = [check for check in checks if check.passed is False]
        open_ = [check for check in checks if check.passed is None and check.required]
        if bad:
            verdict = Verdict.INVALID if name == "digest" else Verdict.FAILED
            sides = f": expected {bad[0].expected}, found {bad[0].found}" if bad[0].expected is not None else ""
            yield part(name, verdict, f"{bad[0].message}{sides}" + (f" ({len(bad)} in all)" if len(bad) > 1 else ""))
        elif open_:
            yield part(name, Verdict.NOT_RUN, open_[0].message)
        elif any(check.passed for check in checks):
            yield part(name, Verdict.PASSED)


def _child(request: SmokeRequest, tree: ImageTree) -> Child | None:
    return next((one for one in tree.children.values() if one.descriptor.digest == request.image.digest), None)


def _platform(request: SmokeRequest, tree: ImageTree) -> Part:
    child = _child(request, tree)
    if child is None:
        return part("platform", Verdict.INVALID, f"{request.image.digest} is not among the image's manifests")
    sku = request.sku
    if sku is not None and not sku.platform.agrees(child.config.platform):
        return part(
            "platform", Verdict.FAILED, f"{sku.name} machines are {sku.platform}, the image is {child.config.platform}"
        )
    return part("platform", Verdict.PASSED)


def _bytecode(layers: list[tuple[Descriptor, LayerFacts]]) -> Part:
    """Bytecode in our own layers: none may run instead of the source beside it, of which it was not made."""
    stale = []
    for _, facts in layers:
        for path, entry in facts.entries.items():
            head = parse_pyc_head(entry.head) if path.endswith(".pyc") else None
            if head is None:
                continue
            folder, _, name = path.rpartition("/")
            source = f"{folder.removesuffix('__pycache__').rstrip('/')}/{name.partition('.')[0]}.py"
            beside = facts.entries.get(source)
            if beside is None or head.runs_for(beside.mtime, beside.size):
                stale.append(path)
    if stale:
        return part("bytecode", Verdict.FAILED, f"{image_path(stale[0])} would run instead of its source")
    return part("bytecode", Verdict.PASSED)


def _machines(request: SmokeRequest, tree: ImageTree, layers: list[tuple[Descriptor, LayerFacts]]) -> Part:
    """ELF files in our layers are for the image's processor."""
    child = _child(request, tree)
    if child is None:
        return part("elf", Verdict.NOT_RUN, "the image's manifest was not found")
    wanted = request.image.platform.machine
    heads: dict[str, bytes] = {}
    for descriptor, facts in layers:
        if descriptor in child.manifest.layers:
            heads.update(_heads(request.image.source, descriptor, facts))
    headers = {path: read_elf_header(head) for path, head in heads.items()}
    machines = {path: header.machine_name for path, header in headers.items() if header is not None}
    wrong = [f"{image_path(path)} is for {name}" for path, name in machines.items() if name not in (wanted, *_FOREIGN)]
    if wrong:
        return part("elf", Verdict.FAILED, f"{wrong[0]}, the image for {wanted}")
    return part("elf", Verdict.PASSED, f"{len(machines)} ELF files" if machines else "")


_FOREIGN = ("amdgpu", "cuda")
"""Code objects for accelerators, whatever the processor."""


def _heads(source: ImageSource, descriptor: Descriptor, facts: LayerFacts) -> dict[str, bytes]:
    """The first bytes of each file of a layer whose digest was verified a moment ago."""
    files = sorted((entry for entry in facts.entries.values() if entry.kind is Kind.FILE), key=lambda one: one.offset)
    files = [entry for entry in files if entry.size >= HEADER_SIZE and entry.offset > 0]
    out: dict[str, bytes] = {}
    if not files:
        return out
    what = f"layer {descriptor.digest}"
    stream = source.open_blob(descriptor, what)
    try:
        verified = VerifiedReader(stream, descriptor.digest, descriptor.size, what)
        limit = uncompressed_limit(descriptor.size)
        reader = DecompressingReader(verified, layer_compression(descriptor, what), limit, what)
        at = 0
        for entry in files:
            while at < entry.offset:
                at += len(_some(reader, min(1 << 20, entry.offset - at)))
            head = b""
            while len(head) < HEADER_SIZE:
                head += _some(reader, HEADER_SIZE - len(head))
            at += HEADER_SIZE
            out[entry.path] = head
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    return out


def _some(reader: DecompressingReader, size: int) -> bytes:
    data = reader.read(size)
    if not data:
        raise UnavailableError("content.io", "a layer ended before the place of a file that it lists")
    return data
