"""The templates by which published tags are named (formats.md, publish)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference, PathReference

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
NAMES = ("base.tag", "base.short", "content.short", "arch")
TEMPLATE_PATTERN = r"(?:[A-Za-z0-9_.-]|\{(?:base\.tag|base\.short|content\.short|arch)\})+"


@dataclass(frozen=True, slots=True)
class TagValues:
    """What a template may name.  `base_tag` the base's tag, None where it has none; `base_short` and `content_short` the
    first 7 digits of the base's digest and of the content id; `arch` the kernel's word (x86_64, aarch64), None for the
    tag of the index."""

    base_tag: str | None
    base_short: str
    content_short: str
    arch: str | None = None

    @classmethod
    def of(
        cls, base: DigestReference | PathReference, content_id: Digest, platform: Platform | None = None
    ) -> TagValues:
        """The values for one base and one content id; with `platform` those of a platform's own tag."""
        assert base.digest is not None
        tag = base.tag if isinstance(base, DigestReference) else base.name
        return cls(tag, base.digest.short(), content_id.short(), None if platform is None else platform.machine)


def render_tag(template: str, values: TagValues) -> str:
    """The tag that `template` gives.

    Raises InputError `target.bad-template` for an unknown name, a name without a value, or a result that is no tag
    (distribution-spec, Pulling manifests: `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`).
    """
    known = {
        "base.tag": values.base_tag,
        "base.short": values.base_short,
        "content.short": values.content_short,
        "arch": values.arch,
    }

    def fill(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in known:
            raise InputError(
                "target.bad-template",
                f"the tag template names {{{name[:40]}}}, which does not exist",
                expected=" | ".join(f"{{{one}}}" for one in NAMES),
                found=template,
            )
        value = known[name]
        if value is None:
            why = "the base is named without a tag" if name == "base.tag" else "the index is of no one architecture"
            raise InputError(
                "target.bad-template",
                f"the tag template names {{{name}}}, and {why}",
                found=template,
                hint="write the tag before the @ of `base`" if name == "base.tag" else "use it in `arch_tag` only",
            )
        return value

    tag = _PLACEHOLDER.sub(fill, template)
    if _TAG.fullmatch(tag) is None:
        raise InputError(
            "target.bad-template",
            f"the template gives {tag[:200]!r}, which is no tag",
            expected="1 to 128 letters, digits, and . _ - between them, beginning with a letter, digit or _",
            found=template,
        )
    return tag
