"""CycloneDX 1.6: what an image holds that its base does not, with the pedigree of each patched package.

The document lists what the layers of ours change and is `incomplete` by its own word: the base's packages are the base's
to list.  Equal locks and overlays give equal bytes; the serial number is a UUID over the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from imagebuild import LABEL_PREFIX, __version__
from imagebuild.attest.predicates.pedigree import Touched, patches_of
from imagebuild.attest.predicates.provenance import pinned_base
from imagebuild.attest.predicates.vex import name_uuid
from imagebuild.content.digest import Digest
from imagebuild.host.clock import rfc3339
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import Inputs, LayerItem, PlatformInputs

SPEC_VERSION = "1.6"
PROPERTY = LABEL_PREFIX.rstrip(".").replace(".", ":") + ":"
Read = Callable[[Digest], bytes | None]
"""Bytes of the base by digest, where they are at hand."""


@dataclass(frozen=True, slots=True)
class Package:
    """A patched distribution: `root` by which overlays name its files, name, version."""

    root: str
    name: str
    version: str

    @property
    def purl(self) -> str:
        """The package URL (type pypi: the normalised name; a local version's `+` is percent-encoded)."""
        return f"pkg:pypi/{normalise_name(self.name)}@{quote(self.version, safe=':')}"

    @classmethod
    def of(cls, dist_info: str, root: str = "") -> Package | None:
        """The distribution of a dist-info folder, name and version as its name says them (PEP 627); None for another name."""
        name, dash, version = dist_info.rpartition("/")[2].removesuffix(".dist-info").rpartition("-")
        return cls(root, name, version) if dash else None


def packages_of(platform: PlatformInputs) -> list[Package]:
    """The distributions that own a root."""
    found = (Package.of(root.dist_info, root.name) for root in platform.roots)
    return [package for package in found if package is not None]


def cyclonedx(
    inputs: Inputs, platform: PlatformInputs, overlays: Sequence[Overlay], read: Read, dropped: Sequence[str] = ()
) -> dict[str, Any]:
    """The document for one platform's image.  `dropped` are digests of what the base attested of itself, which no longer
    holds and is no longer there."""
    items = _changed(platform)
    components = [_patched(package, items, overlays, read) for package in packages_of(platform)]
    components = [found for found in components if found is not None]
    roots = {package.root for package in packages_of(platform)}
    loose = [item for item in items if item.postimage is not None and _root(item) not in roots]
    image = f"image:{inputs.target}"
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(inputs.created),
            "tools": {"components": [{"type": "application", "name": "imagebuild", "version": __version__}]},
            "component": {
                "type": "container",
                "bom-ref": image,
                "name": inputs.target,
                "version": str(inputs.content_id),
                "pedigree": {"ancestors": [_base(inputs)]},
                "properties": _image_properties(platform, overlays),
                **({"externalReferences": [_dropped(digest) for digest in dropped]} if dropped else {}),
            },
        },
        "components": [
            *components,
            *_wheels(inputs, platform),
            *[_file(item) for item in sorted(loose, key=lambda item: item.path)],
        ],
        "compositions": [{"aggregate": "incomplete", "assemblies": [image]}],
    }
    serial = {"serialNumber": f"urn:uuid:{name_uuid(body)}"}
    return {"bomFormat": body.pop("bomFormat"), "specVersion": body.pop("specVersion"), **serial, **body}


def _changed(platform: PlatformInputs) -> list[LayerItem]:
    """What the overlays put, replace or remove at single paths, each path once, against what the base has there."""
    brought = {item.path: item for item in platform.artefacts if item.origin.startswith(("blob:", "stage:"))}
    out = dict(brought)
    for item in platform.changes:
        if item.origin.startswith("change:"):
            below = brought.get(item.path)
            out[item.path] = item if below is None else replace(item, preimage=below.preimage)
    return list(out.values())


def _base(inputs: Inputs) -> dict[str, Any]:
    return {
        "type": "container",
        "name": inputs.base.partition("@")[0],
        "version": str(inputs.base_digest),
        "hashes": [{"alg": "SHA-256", "content": inputs.base_digest.hex}],
        "description": f"the base, {pinned_base(inputs)}",
    }


def named_property(name: str, value: str) -> dict[str, str]:
    """A CycloneDX property in our own namespace."""
    return {"name": PROPERTY + name, "value": value}


def _image_properties(platform: PlatformInputs, overlays: Sequence[Overlay]) -> list[dict[str, str]]:
    out = [named_property("platform", str(platform.platform))]
    for overlay in overlays:
        out.append(named_property(f"overlay:{overlay.name}:license", overlay.license or "NOASSERTION"))
    return out


def _dropped(digest: str) -> dict[str, Any]:
    return {
        "type": "attestation",
        "url": f"oci:{digest}",
        "comment": "attested by the base of itself; not carried over",
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }


def _root(item: LayerItem) -> str:
    return item.origin.partition(":")[2].partition("/")[0]


def _patched(
    package: Package, items: Sequence[LayerItem], overlays: Sequence[Overlay], read: Read
) -> dict[str, Any] | None:
    own = [item for item in items if _root(item) == package.root]
    if not own:
        return None
    touched = {item.origin.partition(":")[2]: Touched(item.preimage, item.postimage) for item in own}
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "pedigree": {
            "ancestors": [{"type": "library", "name": package.name, "version": package.version, "purl": package.purl}],
            "patches": [patch for overlay in overlays for patch in patches_of(overlay, package.root, touched, read)],
            "notes": "files changed by overlays: " + ", ".join(sorted(item.path for item in own)),
        },
        "properties": [named_property(f"{_word(item)}-file", item.path) for item in sorted(own, key=lambda i: i.path)],
    }


def _word(item: LayerItem) -> str:
    if item.preimage is None:
        return "added"
    return "removed" if item.kind == "whiteout" else "changed"


def _wheels(inputs: Inputs, platform: PlatformInputs) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for overlay in inputs.wanted["overlays"]:
        for change in overlay["changes"]:
            digests: Mapping[str, str] = change.get("sha256") if change["kind"] == "wheel" else {}
            digest = digests.get(str(platform.platform))
            if digest is None:
                continue
            package = Package("", change["name"], change["version"])
            found[package.purl] = {
                "type": "library",
                "bom-ref": package.purl,
                "name": package.name,
                "version": package.version,
                "purl": package.purl,
                "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
            }
    return [found[purl] for purl in sorted(found)]


def _file(item: LayerItem) -> dict[str, Any]:
    assert item.postimage is not None
    return {
        "type": "file",
        "bom-ref": f"file:{item.path}",
        "name": item.path,
        "hashes": [{"alg": "SHA-256", "content": item.postimage.hex}],
    }
