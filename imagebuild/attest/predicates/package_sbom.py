"""The SBOM that stands in a patched distribution's dist-info (PEP 770, folder `sboms`): CycloneDX 1.6 with what was changed.

It is part of the image, so it says only what decides the image's bytes: no tool version, no author, no upstream link, and
every change is `unofficial`.  What people say of their changes stands in the SBOM that is attached to the image (`sbom.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from imagebuild.attest.predicates.pedigree import DIFF_LIMIT
from imagebuild.attest.predicates.sbom import SPEC_VERSION, Package, named_property
from imagebuild.attest.predicates.vex import name_uuid
from imagebuild.content.canonical import document_json
from imagebuild.host.clock import rfc3339

FILE_WORDS = ("added", "changed", "removed")


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """A path of the distribution that the series changes: image path, what happened to it (one of FILE_WORDS), the overlays
    that touch it, in the order of the series, and the unified diff against the base's file, b"" where there is none."""

    path: str
    word: str
    overlays: tuple[str, ...]
    diff: bytes = b""

    def __post_init__(self) -> None:
        if self.word not in FILE_WORDS:
            raise ValueError(f"{self.word!r} is none of {', '.join(FILE_WORDS)}")


def package_sbom(package: Package, files: Iterable[PatchedFile], created: int) -> bytes:
    """The document's bytes: equal facts give equal bytes, whatever the order of `files`; `created` in seconds since 1970.

    One entry of `pedigree.patches` for each combination of overlays; its diff covers the files of which the bytes before are
    at hand in every build (patched and edited ones), up to DIFF_LIMIT bytes.
    """
    ordered = sorted(files, key=lambda file: file.path)
    by_overlays: dict[tuple[str, ...], list[PatchedFile]] = {}
    for file in ordered:
        by_overlays.setdefault(file.overlays, []).append(file)
    ancestor = {"type": "library", "name": package.name, "version": package.version, "purl": package.purl}
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(created),
            "tools": {"components": [{"type": "application", "name": "imagebuild"}]},
        },
        "components": [
            {
                **ancestor,
                "bom-ref": package.purl,
                "pedigree": {
                    "ancestors": [ancestor],
                    "patches": [_patch(names, found) for names, found in by_overlays.items()],
                    "notes": "changed after installation; the files are named by the properties",
                },
                "properties": [named_property(f"{file.word}-file", file.path) for file in ordered],
            }
        ],
        "compositions": [{"aggregate": "incomplete", "assemblies": [package.purl]}],
    }
    return document_json({**body, "serialNumber": f"urn:uuid:{name_uuid(body)}"})


def _patch(overlays: tuple[str, ...], files: Iterable[PatchedFile]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": "unofficial",
        "resolves": [{"type": "enhancement", "id": name, "name": name} for name in overlays],
    }
    text = b"".join(file.diff for file in files)
    if text and len(text) <= DIFF_LIMIT:
        with suppress(UnicodeDecodeError):  # a text in another encoding: its files are named all the same
            out["diff"] = {"text": {"contentType": "text/x-diff", "content": text.decode("utf-8")}}
    return out
