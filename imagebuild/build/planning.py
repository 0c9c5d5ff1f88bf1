"""What lock and build would do and cost, told beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuild.oci.tree import ImageTree
from imagebuild.overlay.distributions import normalise_name
from imagebuild.target.document import Target
from imagebuild.target.lock_types import ArtefactSource, LayerItem, Lock, PlatformInputs, PlatformResult

SEVERE_MODE = 0o6000
MANY = ("wheel:", "parent", "bytecode:")
"""Origins whose entries people are not shown one by one."""


def plan_locked(lock: Lock) -> dict[str, Any]:
    """The plan of a target with a current lock.  Bytes are exact, requests those of a registry that holds the base.

    A push asks for the tag, mounts each base layer, opens and fills one upload for each blob of ours and each config,
    then puts manifests and the tag.  `worst_case_bytes` is what `--allow-base-transfer` would move at most.
    """
    platforms = []
    blobs: dict[str, int] = {}
    base_layers: dict[str, int] = {}
    documents = 0
    for platform in lock.inputs.platforms:
        result = next(p for p in lock.result.platforms if p.platform == platform.platform)
        for layer in result.layers:
            blobs[str(layer.digest)] = layer.size
        for base in platform.layers:
            base_layers[str(base.digest)] = base.size
        documents += result.manifest_size
        platforms.append(_platform(platform, result))
    count = len(lock.result.platforms)
    index = 1 if lock.inputs.is_index else 0
    read = {str(x.digest): x.size for p in lock.inputs.platforms for x in p.layers if x.read}
    sources = {str(x.sha256): x.size for p in lock.inputs.platforms for x in p.sources}
    return {
        "target": lock.inputs.target,
        "locked": True,
        "digest": str(lock.result.digest),
        "content_id": str(lock.result.content_id),
        "platforms": platforms,
        "lock": {"bytes": sum(read.values()), "layers": len(read)},
        "build": {
            "upload_bytes": sum(blobs.values()) + documents + (lock.result.size if index else 0),
            "requests": 1 + len(base_layers) + 2 * (len(blobs) + count) + count + index,
            "unchanged_requests": 1,
            "artefact_bytes": sum(sources.values()),
            "worst_case_bytes": sum(base_layers.values()),
        },
    }


def _platform(platform: PlatformInputs, result: PlatformResult) -> dict[str, Any]:
    return {
        "platform": str(platform.platform),
        "base_layers": len(platform.layers),
        "layers": [
            {
                "role": layer.role,
                "digest": str(layer.digest),
                "size": layer.size,
                "compressor": platform.compressors[layer.role],
            }
            for layer in result.layers
        ],
        "artefacts": [_source(source, platform) for source in platform.sources],
        "files": [_file(item, platform) for item in (*platform.artefacts, *platform.changes)],
        "environment": dict(platform.environment),
        "unread": [str(layer.digest) for layer in platform.layers if not layer.read],
        "not_proven": list(platform.not_proven),
    }


def _source(source: ArtefactSource, platform: PlatformInputs) -> dict[str, Any]:
    """What is fetched, once for all machines that share a cache, and how many entries it makes."""
    origin = f"wheel:{normalise_name(source.name)}" if source.kind == "wheel" else f"{source.kind}:{source.name}"
    shown = {"kind": source.kind, "name": source.name, "sha256": str(source.sha256), "size": source.size}
    files = sum(item.origin == origin for item in platform.artefacts)
    return {**shown, **({"version": source.version} if source.version else {}), "files": files}


def _file(item: LayerItem, platform: PlatformInputs) -> dict[str, Any]:
    guard = "derived"
    kind, _, name = item.origin.partition(":")
    if kind in ("wheel", "removed"):
        guard = kind
    elif kind in ("change", "blob", "stage"):
        fact = next((fact for fact in platform.facts if fact.change == name), None)
        if fact is not None and fact.state == "present":
            guard = "matches"
        else:
            guard = fact.state if fact is not None else "not-proven"
    shown: dict[str, Any] = {
        "path": item.path,
        "kind": item.kind,
        "origin": item.origin,
        "guard": guard,
        "before": None if item.preimage is None else str(item.preimage),
        "after": None if item.postimage is None else str(item.postimage),
    }
    notes = []
    if item.kind == "file" and item.mode & SEVERE_MODE:
        notes.append(f"keeps mode {item.mode:04o} (set-id) on changed bytes")
    if "security.capability" in item.xattrs:
        notes.append("keeps file capabilities (security.capability) on changed bytes")
    for fact in platform.facts:
        if fact.path == item.path and fact.names:
            notes.append("other names keep the old data: " + ", ".join(fact.names))
    if notes:
        shown["notes"] = notes
    return shown


def plan_unlocked(target: Target, tree: ImageTree) -> dict[str, Any]:
    """The plan of a target without lock, from the base's documents alone.

    `lock` tells the least (the top layer) and the most (every layer) that locking reads, each layer once for all platforms.
    """
    layers: dict[str, int] = {}
    tops: dict[str, int] = {}
    platforms = []
    for platform, child in tree.children.items():
        listed = [{"digest": str(d.digest), "size": d.size, "mediaType": d.media_type} for d in child.manifest.layers]
        for d in child.manifest.layers:
            layers[str(d.digest)] = d.size
        if child.manifest.layers:
            tops[str(child.manifest.layers[-1].digest)] = child.manifest.layers[-1].size
        platforms.append({"platform": str(platform), "base_layers": len(listed), "read_from_the_top": listed[::-1]})
    return {
        "target": target.name,
        "locked": False,
        "platforms": platforms,
        "attestations_dropped": [str(d.digest) for d in tree.attestations],
        "images_not_built": [str(d.digest) for d in tree.others],
        "lock": {
            "bytes_at_least": sum(tops.values()),
            "bytes_at_most": sum(layers.values()),
            "layers": len(layers),
            "requests_at_most": len(layers),
        },
    }


def plan_text(plan: Mapping[str, Any]) -> str:
    """The plan for people."""
    from imagebuild.content.text import size_text, table

    lines = []
    for platform in plan["platforms"]:
        lines.append(
            f"{plan['target']} {platform['platform']}: {platform['base_layers']} layers of the base stay as they are"
        )
        if plan["locked"]:
            for layer in platform["layers"]:
                lines.append(
                    f"  + {layer['role']} layer, {size_text(layer['size'])}, {layer['compressor']}, {layer['digest']}"
                )
            lines += [
                f"  + {x['kind']} {x['name']}{' ' + x['version'] if 'version' in x else ''}, {size_text(x['size'])}, "
                f"{x['files']} files, {x['sha256']}"
                for x in platform["artefacts"]
            ]
            rows = [[f["guard"], f["kind"], f["path"]] for f in platform["files"] if not f["origin"].startswith(MANY)]
            lines += [table(rows, ["GUARD", "KIND", "PATH"])] if rows else []
            lines += [f"  note: {f['path']}: {note}" for f in platform["files"] for note in f.get("notes", ())]
            lines += [f"  env {name}={value}" for name, value in platform["environment"].items()]
            lines += [f"  not proven: {text}" for text in platform["not_proven"]]
        else:
            rows = [[str(n), size_text(x["size"]), x["digest"]] for n, x in enumerate(platform["read_from_the_top"], 1)]
            lines.append(table(rows, ["READ", "SIZE", "LAYER"]))
    lock = plan["lock"]
    if plan["locked"]:
        build = plan["build"]
        lines += [
            f"lock read {size_text(lock['bytes'])} in {lock['layers']} layers",
            f"build sends {size_text(build['upload_bytes'])} in {build['requests']} requests, 1 request when nothing changed; "
            f"at worst {size_text(build['worst_case_bytes'])} where a registry refuses to mount and you allow the transfer",
            *(
                [f"artefacts of {size_text(build['artefact_bytes'])} are fetched where the cache lacks them"]
                * bool(build["artefact_bytes"])
            ),
            plan["digest"],
        ]
    else:
        lines.append(
            f"no lock yet: locking reads {size_text(lock['bytes_at_least'])} to {size_text(lock['bytes_at_most'])} "
            f"in at most {lock['layers']} layers"
        )
    return "\n".join(lines)
