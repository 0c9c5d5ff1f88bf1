"""The arms of an accuracy run: which image each serves, with the switches in which position, and what must be found inside.

`base` and `base-again` serve the unpatched base with the switches unset, `off` the patched image with every switch at its
default, `on` with every switch on (checks.md, Arms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagebuild.build.labels import PARENT
from imagebuild.check.engine_server import Expected
from imagebuild.check.proofs import WantedProof
from imagebuild.check.runner import CheckedImage
from imagebuild.check.runners.loading import child_of
from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import LayerItem, Lock, PlatformInputs

AGAIN = "base-again"
BASES = ("base", AGAIN)
ARMS = ("base", AGAIN, "off", "on")


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm, ready to be started.  `switches` is what is laid over the server's environment, `unset` what is taken out
    of it; `proofs` what must show that the switched branch ran."""

    name: str
    image: CheckedImage
    expected: Expected
    switches: Mapping[str, str]
    unset: tuple[str, ...]
    proofs: tuple[WantedProof, ...] = ()

    @property
    def position(self) -> str | None:
        """What meta_env.json calls the switch: the values, None for the base."""
        return None if self.name in BASES else ",".join(f"{k}={v}" for k, v in sorted(self.switches.items())) or None


def wanted_proofs(overlays: Sequence[Overlay]) -> tuple[WantedProof, ...]:
    """What the `on` arm of a series has to show: one proof an overlay with a switch."""
    return tuple(
        WantedProof(
            overlay.name,
            overlay.proof.counter if overlay.proof is not None else None,
            overlay.proof.log if overlay.proof is not None else None,
        )
        for overlay in overlays
        if overlay.switch is not None
    )


def plan_arm(
    name: str,
    overlays: Sequence[Overlay],
    lock: Lock | None,
    platform: Platform,
    base: Callable[[], CheckedImage],
    patched: Callable[[], CheckedImage],
    *,
    installed: bool = False,
) -> Arm:
    """`base` and `patched` open the images.  `installed` is a runner without containers: files are then not where the image
    has them, so that the content id alone is looked for.

    Raises InputError `check.bad-arm`, `check.no-switch` for `on` where no overlay has a switch, `check.no-content-id` for an
    image that claims none, and what opening raises.
    """
    if name not in ARMS:
        raise InputError("check.bad-arm", "no such arm", expected=" | ".join(ARMS), found=name)
    switches = [overlay.switch for overlay in overlays if overlay.switch is not None]
    if name == "on" and not switches:
        raise InputError(
            "check.no-switch",
            "no overlay of the target has a switch, so that there is no arm `on`",
            expected="the arms base and off",
            hint="take `on` out of checks.gsm8k.arms",
        )
    inputs = _inputs(lock, platform)
    if name in BASES:
        files = {} if installed or inputs is None else dict(_files(inputs, before=True))
        image = base()
        expected = Expected(image.content_id, _parents(image), files, () if installed else _provenance(inputs))
        return Arm(name, image, expected, no_entries(), tuple(switch.env for switch in switches))
    image = patched()
    if image.content_id is None:
        raise InputError(
            "check.no-content-id",
            f"{image.reference} is no image that was built from a lock: it carries no content id",
            hint="name the built image with --image, or build the target",
        )
    files = {}
    if not installed and inputs is not None and lock is not None and lock.result.content_id == image.content_id:
        files = dict(_files(inputs, before=False))
    return Arm(
        name,
        image,
        Expected(image.content_id, _parents(image), files, () if installed else _provenance(inputs)),
        {switch.env: switch.on if name == "on" else switch.default for switch in switches},
        (),
        wanted_proofs(overlays) if name == "on" else (),
    )


def _parents(image: CheckedImage) -> tuple[Digest, ...]:
    """The content id that the image's base has, where that was built by us."""
    claimed = child_of(image).config.labels.get(PARENT)
    try:
        return () if claimed is None else (Digest.parse(claimed),)
    except ImagebuildError:
        return ()


def _inputs(lock: Lock | None, platform: Platform) -> PlatformInputs | None:
    found = lock.inputs.platforms if lock is not None else ()
    return next((one for one in found if one.platform == platform), None)


def _files(inputs: PlatformInputs, *, before: bool) -> Iterator[tuple[str, str]]:
    """Path and digest of each regular file that the layers change, as the base has it or as the image has it.  Bytecode is
    left out: Python writes it when the server starts."""
    last: dict[str, LayerItem] = {}
    first: dict[str, LayerItem] = {}
    for item in (*inputs.artefacts, *inputs.changes):
        last[item.path] = item
        first.setdefault(item.path, item)
    for path, item in last.items():
        if item.origin.startswith(("bytecode:", "provenance:", "parent")) or item.kind not in ("file", "whiteout"):
            continue
        digest = first[path].preimage if before else item.postimage
        if before or item.kind == "whiteout" or digest is not None:
            yield path, str(digest) if digest is not None else "absent"


def _provenance(inputs: PlatformInputs | None) -> tuple[str, ...]:
    items = (*inputs.artefacts, *inputs.changes) if inputs is not None else ()
    return tuple(sorted(item.path for item in items if item.origin.startswith("provenance:")))
