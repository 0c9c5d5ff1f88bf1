"""`plan --offline`: what locking would fetch, told from what is here; and what a target leaves to the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imagebuild.build.asked import asked_paths
from imagebuild.build.contents import Contents
from imagebuild.build.planning import plan_text, plan_unlocked
from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable
from imagebuild.content.text import size_text
from imagebuild.errors import ImagebuildError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import CONFIG_LIMIT, MANIFEST_LIMIT
from imagebuild.oci.json_text import parse, plain
from imagebuild.oci.reference import DigestReference
from imagebuild.oci.tree import ImageTree, read_image_tree
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target


class KeptDocuments:
    """An image source of the documents that earlier runs kept: it asks nobody."""

    def __init__(self, target: Target, contents: Contents) -> None:
        self._contents = contents
        self.location = f"what is kept of {target.base}"

    def _get(self, digest: Digest) -> bytes:
        data = self._contents.get(digest)
        if data is None:
            raise UnavailableError("plan.not-kept", f"{digest} was not kept", expected=str(digest))
        return data

    def resolve(self, name: str | None) -> Descriptor:
        raise UnavailableError("plan.not-kept", "a name is not asked for offline")

    def read_document(self, digest: Digest, media_type: str | None = None) -> tuple[bytes, str]:
        raw = self._get(digest)
        value = plain(parse(raw, "a kept document"))
        said = value.get("mediaType") if isinstance(value, dict) else None
        return raw, media_type or said or (mt.OCI_INDEX if "manifests" in value else mt.OCI_MANIFEST)

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> Readable:
        import io

        return io.BytesIO(self._get(descriptor.digest))

    def has_blob(self, descriptor: Descriptor) -> bool:
        return self._contents.get(descriptor.digest) is not None

    def referrers(self, subject: Digest) -> Sequence[Descriptor]:
        raise UnavailableError("plan.not-kept", "referrers are not kept")


def kept_tree(target: Target, contents: Contents) -> ImageTree | None:
    """The base's documents, where an earlier run kept all of them."""
    assert target.base.digest is not None
    try:
        return read_image_tree(KeptDocuments(target, contents), target.base.digest, target.platforms)
    except ImagebuildError:
        return None


def plan_from_nothing(target: Target, overlays: Sequence[Overlay]) -> dict[str, Any]:
    """What `lock` would ask of a base of which nothing is here.  Sizes that stand in documents not at hand are null;
    `at_most` bounds them in bytes."""
    digest = target.base.digest
    fetches: list[dict[str, Any]] = [
        {"what": "the index or manifest that the target pins", "name": str(digest), "at_most": MANIFEST_LIMIT}
    ]
    for platform in target.platforms:
        if len(target.platforms) > 1 or isinstance(target.base, DigestReference):
            what = f"the manifest for {platform}, where that was an index"
            fetches.append({"what": what, "name": None, "at_most": MANIFEST_LIMIT})
        fetches.append({"what": f"the config for {platform}", "name": None, "at_most": CONFIG_LIMIT})
        paths = sorted(asked_paths(overlays, platform).named)
        what = f"layers for {platform}, whole, from the top down until these are settled"
        roots = [f"root {name}" for name in target.roots]
        fetches.append({"what": what, "name": None, "at_most": None, "settles": [*roots, *paths]})
    return {
        "target": target.name,
        "locked": False,
        "base": {"reference": str(target.base), "location": str(getattr(target.base, "repository", target.base))},
        "fetches": fetches,
    }


def offline_text(plan: dict[str, Any]) -> str:
    """The plan for people."""
    lines = [
        f"{plan['target']}: nothing of the base is here.  `imagebuild lock {plan['target']}` would fetch",
        f"from {plan['base']['location']}, after asking for a token where it is wanted:",
    ]
    for number, item in enumerate(plan["fetches"], 1):
        bound = f" (at most {size_text(item['at_most'])})" if item["at_most"] else ""
        lines.append(f"  {number}. {item['what']}{bound}" + (f"\n     {item['name']}" if item["name"] else ""))
        lines += [f"       {path}" for path in item.get("settles", ())]
    lines.append("Layers and their sizes stand in the manifest: without it nobody knows them.")
    return "\n".join(lines)


def plan_here(target: Target, overlays: Sequence[Overlay], tree: ImageTree | None) -> tuple[dict[str, Any], str]:
    """The plan of a target without a current lock, from the base's documents where they are at hand (`tree`)."""
    if tree is not None:
        plan = {**plan_unlocked(target, tree), "offline": True}
        return plan, plan_text(plan)
    plan = {**plan_from_nothing(target, overlays), "offline": True}
    return plan, offline_text(plan)


def outside_image(target: Target, overlays: Sequence[Overlay]) -> dict[str, Any]:
    """What stands outside the image: `recipe` is the environment that the server is started with, `switches` those of the overlays
    with the value that turns them on; `asserted` of the base and `host`, which nobody writes."""
    return {
        "recipe": dict(target.serve.env) if target.serve is not None else {},
        "switches": {overlay.switch.env: overlay.switch.on for overlay in overlays if overlay.switch is not None},
        "asserted": dict(target.requires_env),
        "host": dict(target.requires_host),
    }


def outside_text(shown: dict[str, Any]) -> list[str]:
    """One line a fact, [] where there is none."""
    lines = [f"recipe, not image: {name}={value}" for name, value in shown["recipe"].items()]
    lines += [f"recipe, not image: {name}={value} turns the change on" for name, value in shown["switches"].items()]
    lines += [f"asserted of the base: {name}={value}" for name, value in shown["asserted"].items()]
    return lines + [f"asserted of the host: {name} {bound}" for name, bound in shown["host"].items()]


def tags(target: Target, content_id: Digest | None) -> dict[str, str]:
    """Published tags by platform (`index` for the index's); without a content id only those that do not name it."""
    if target.publish is None:
        return {}
    some = content_id or Digest("0" * 64)
    out: dict[str, str] = {}
    if content_id is not None or "{content." not in target.publish.tag:
        out["index"] = str(target.index_tag(some))
    if target.publish.arch_tag is not None and (content_id is not None or "{content." not in target.publish.arch_tag):
        out |= {str(platform): str(target.arch_tag(some, platform)) for platform in target.platforms}
    return out
