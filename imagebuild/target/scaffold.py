"""What `init` writes, as values: files that are new, and lines that a file must hold.  Nothing here touches a disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from imagebuild.content.strict_yaml import quoted
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference
from imagebuild.overlay.vocabulary import validate_name
from imagebuild.target.parts import IMPORT_NAME, Base
from imagebuild.target.sku import SKUS
from imagebuild.target.workspace import Folders


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file of a scaffold, `path` below the workspace.  With `lines` the file may exist, and gets those lines of
    `data` that it lacks; without, an existing file is left alone."""

    path: str
    data: bytes
    lines: bool = False

    def merged(self, existing: bytes | None) -> bytes | None:
        """What the file shall hold, or None where nothing is to be written."""
        if existing is None:
            return self.data
        if not self.lines:
            return None
        have = {line.strip() for line in existing.splitlines()}
        missing = [line for line in self.data.splitlines() if line.strip() not in have]
        if not missing:
            return None
        start = existing if not existing or existing.endswith(b"\n") else existing + b"\n"
        return start + b"\n".join(missing) + b"\n"


def scaffold_workspace(folders: Folders | None = None) -> tuple[NewFile, ...]:
    """An empty workspace.  The attributes keep git from touching bytes whose digests are written down."""
    where = folders or Folders()
    attributes = f"{where.manifests}/** -text\n{where.overlays}/** -text\n"
    return (
        NewFile(".gitattributes", attributes.encode(), lines=True),
        NewFile(".gitignore", b"/build/\n/.imagebuild/\n*.key\n", lines=True),
        NewFile(f"{where.manifests}/.gitkeep", b""),
        NewFile(f"{where.overlays}/.gitkeep", b""),
    )


def scaffold_target(
    name: str,
    base: Base,
    platforms: Sequence[Platform],
    sku: str | None = None,
    overlays: Sequence[str] = (),
    folders: Folders | None = None,
    roots: Sequence[str] = (),
) -> tuple[NewFile, ...]:
    """A target for a pinned base; `roots` are import names of packages that overlays will change.  Raises InputError `overlay.bad-name`,
    `target.bad-root` or `target.sku-platform`."""
    validate_name(name, "a target")
    for root in roots:
        if re.fullmatch(IMPORT_NAME, root) is None:
            raise InputError(
                "target.bad-root",
                f"{root[:80]!r} is not an import name",
                expected="the name by which Python imports the package, vllm for example",
                found=root[:80],
            )
    if sku is not None:
        known = SKUS.get(sku)
        if known is None or known.platform not in platforms:
            raise InputError(
                "target.sku-platform",
                f"unknown SKU {sku}" if known is None else f"{sku} hosts are {known.platform}, which the base lacks",
                expected=" | ".join(SKUS) if known is None else str(known.platform),
                found=", ".join(str(platform) for platform in platforms),
            )
    tag = "{base.tag}-{base.short}" if _tagged(base) else "{base.short}"
    lines = [
        "schema: 1",
        f"name: {quoted(name)}",
        f"base: {quoted(str(base))}",
        f"platforms: [{', '.join(str(platform) for platform in platforms)}]",
        *([f"sku: {sku}"] if sku else []),
        f"overlays: [{', '.join(quoted(one) for one in overlays)}]  # a series, applied in this order",
        _roots_line(roots),
        "# publish:",
        "#   repository: docker.io/example/engine",
        f'#   tag: "{tag}-{{content.short}}"',
        f'#   arch_tag: "{tag}-{{content.short}}-{{arch}}"',
        "",
    ]
    where = folders or Folders()
    return (NewFile(f"{where.manifests}/{name}/target.yaml", "\n".join(lines).encode()),)


def _roots_line(roots: Sequence[str]) -> str:
    words = ", ".join(f"{quoted(name.replace('.', '_'))}: {{python: {quoted(name)}}}" for name in roots)
    example = "" if roots else ", for example {vllm: {python: vllm}}"
    return f"roots: {{{words}}}  # what the first part of an overlay's path means{example}"


def _tagged(base: Base) -> bool:
    return bool(base.tag if isinstance(base, DigestReference) else base.name)


def target_name(base: Base, sku: str | None) -> str:
    """A name for a target that nobody named: SKU and the base's repository or folder (`b300-vllm-openai`)."""
    path = base.repository.path if isinstance(base, DigestReference) else base.path
    last = path.rstrip("/").rpartition("/")[2].lower().removesuffix(".tar")
    word = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in last).strip("._-")
    return validate_name("-".join(part for part in (sku, word[:48].strip("._-")) if part) or "target", "a target")
