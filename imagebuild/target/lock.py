"""Reading and writing `target.lock.json` (formats.md).

The document is canonical: loading and storing again gives the same bytes.  A lock that says something that its
own inputs contradict (another content id) is refused, since it was edited or merged by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from imagebuild.content.canonical import document_json, load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.target.lock_types import (
    LAYER_FORMAT,
    ArtefactSource,
    BaseLayer,
    Inputs,
    LayerItem,
    Lock,
    PathFact,
    PlatformInputs,
    PlatformResult,
    Result,
    ResultLayer,
    RootFact,
)

SCHEMA = 1
T = TypeVar("T")


def _without_defaults(value: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what is empty, so that one fact stays one line; 0 is a fact, "" and {} are not."""
    return {key: item for key, item in value.items() if item is not None and item != "" and item != {} and item != []}


def _text(digest: Digest | None) -> str | None:
    return None if digest is None else str(digest)


def _format_fact(fact: PathFact) -> dict[str, Any]:
    if fact.state != "present":
        return _without_defaults({"state": fact.state, "change": fact.change})
    return _without_defaults(
        {
            "state": fact.state,
            "layer": _text(fact.layer),
            "kind": fact.kind,
            "mode": f"{fact.mode:04o}",
            "uid": fact.uid,
            "gid": fact.gid,
            "mtime": fact.mtime,
            "size": fact.size,
            "sha256": _text(fact.sha256),
            "link": fact.link,
            "xattrs": dict(fact.xattrs),
            "head": fact.head,
            "names": list(fact.names),
            "change": fact.change,
        }
    )


def _format_item(item: LayerItem) -> dict[str, Any]:
    shown: dict[str, Any] = {"path": item.path, "kind": item.kind, "origin": item.origin}
    shown["mtime"] = item.mtime
    if item.kind != "whiteout":
        shown.update(mode=f"{item.mode:04o}", uid=item.uid, gid=item.gid)
    shown.update(
        link=item.link,
        xattrs=dict(item.xattrs),
        preimage=_text(item.preimage),
        postimage=_text(item.postimage),
        patch=_text(item.patch),
    )
    return _without_defaults(shown)


def _format_source(source: ArtefactSource) -> dict[str, Any]:
    shown = {"kind": source.kind, "name": source.name, "sha256": str(source.sha256), "size": source.size}
    return _without_defaults({**shown, "version": source.version, "details": dict(source.details)})


def _parse_source(value: Mapping[str, Any]) -> ArtefactSource:
    return ArtefactSource(
        value["kind"],
        value["name"],
        Digest.parse(value["sha256"]),
        value["size"],
        value.get("version", ""),
        value.get("details", {}),
    )


def _format_platform(value: PlatformInputs) -> dict[str, Any]:
    sources = {"sources": [_format_source(source) for source in value.sources]} if value.sources else {}
    return {
        "manifest": {
            "digest": str(value.manifest),
            "mediaType": value.manifest_type,
            "size": value.manifest_size,
        },
        "config": str(value.config),
        "layers": [
            {
                "digest": str(layer.digest),
                "diff_id": str(layer.diff_id),
                "mediaType": layer.media_type,
                "read": layer.read,
                "size": layer.size,
            }
            for layer in value.layers
        ],
        "roots": {
            root.name: _without_defaults(
                {
                    "folder": root.folder,
                    "distribution": root.distribution,
                    "dist_info": root.dist_info,
                    "site": root.site,
                }
            )
            for root in value.roots
        },
        "facts": {fact.path: _format_fact(fact) for fact in value.facts},
        "artefacts": [_format_item(item) for item in value.artefacts],
        "changes": [_format_item(item) for item in value.changes],
        "environment": [[name, text] for name, text in value.environment],
        "compressors": dict(value.compressors),
        "not_proven": list(value.not_proven),
        **sources,
    }


def format_inputs(inputs: Inputs) -> dict[str, Any]:
    """The JSON value of the inputs; its canonical text is what the content id hashes."""
    return {
        "target": inputs.target,
        "base": {
            "reference": inputs.base,
            "digest": str(inputs.base_digest),
            "mediaType": inputs.base_media_type,
        },
        "created": inputs.created,
        "layer_format": inputs.layer_format,
        "wanted": dict(inputs.wanted),
        "platforms": {str(item.platform): _format_platform(item) for item in inputs.platforms},
    }


def _format_result(result: Result) -> dict[str, Any]:
    return {
        "digest": str(result.digest),
        "size": result.size,
        "mediaType": result.media_type,
        "content_id": str(result.content_id),
        "platforms": {
            str(item.platform): {
                "manifest": str(item.manifest),
                "manifest_size": item.manifest_size,
                "config": str(item.config),
                "layers": [
                    {
                        "role": layer.role,
                        "digest": str(layer.digest),
                        "diff_id": str(layer.diff_id),
                        "mediaType": layer.media_type,
                        "size": layer.size,
                    }
                    for layer in item.layers
                ],
            }
            for item in result.platforms
        },
    }


def format_lock(lock: Lock) -> bytes:
    """The lock's canonical text."""
    return document_json(
        {
            "kind": "lock",
            "schema": SCHEMA,
            "inputs": format_inputs(lock.inputs),
            "result": _format_result(lock.result),
            "notes": dict(lock.notes),
        }
    )


def _digest(value: Any) -> Digest | None:
    return None if value is None else Digest.parse(value)


def _mode(value: str | None) -> int:
    return int(value, 8) if value else 0


def _parse_fact(path: str, value: Mapping[str, Any]) -> PathFact:
    return PathFact(
        path,
        value["state"],
        _digest(value.get("layer")),
        value.get("kind", ""),
        _mode(value.get("mode")),
        value.get("uid", 0),
        value.get("gid", 0),
        value.get("mtime", 0),
        value.get("size", 0),
        _digest(value.get("sha256")),
        value.get("link", ""),
        value.get("xattrs", {}),
        value.get("head", ""),
        tuple(value.get("names", ())),
        value.get("change", ""),
    )


def _parse_item(value: Mapping[str, Any]) -> LayerItem:
    return LayerItem(
        value["path"],
        value["kind"],
        value["origin"],
        _mode(value.get("mode")),
        value.get("uid", 0),
        value.get("gid", 0),
        value.get("mtime", 0),
        value.get("link", ""),
        value.get("xattrs", {}),
        _digest(value.get("preimage")),
        _digest(value.get("postimage")),
        _digest(value.get("patch")),
    )


def _parse_platform(name: str, value: Mapping[str, Any]) -> PlatformInputs:
    return PlatformInputs(
        Platform.parse(name),
        Digest.parse(value["manifest"]["digest"]),
        value["manifest"]["size"],
        value["manifest"]["mediaType"],
        Digest.parse(value["config"]),
        tuple(
            BaseLayer(Digest.parse(x["digest"]), x["size"], x["mediaType"], Digest.parse(x["diff_id"]), x["read"])
            for x in value["layers"]
        ),
        tuple(
            RootFact(n, x["folder"], x.get("distribution", ""), x.get("dist_info", ""), x.get("site", ""))
            for n, x in value["roots"].items()
        ),
        tuple(_parse_fact(path, fact) for path, fact in value["facts"].items()),
        tuple(_parse_item(item) for item in value["artefacts"]),
        tuple(_parse_item(item) for item in value["changes"]),
        tuple((n, t) for n, t in value["environment"]),
        value["compressors"],
        tuple(value["not_proven"]),
        tuple(_parse_source(source) for source in value.get("sources", ())),
    )


def _parse_inputs(value: Mapping[str, Any]) -> Inputs:
    return Inputs(
        value["target"],
        value["base"]["reference"],
        Digest.parse(value["base"]["digest"]),
        value["base"]["mediaType"],
        value["created"],
        value["wanted"],
        tuple(_parse_platform(name, item) for name, item in value["platforms"].items()),
        value["layer_format"],
    )


def _parse_result(value: Mapping[str, Any]) -> Result:
    return Result(
        Digest.parse(value["digest"]),
        value["size"],
        value["mediaType"],
        Digest.parse(value["content_id"]),
        tuple(
            PlatformResult(
                Platform.parse(name),
                Digest.parse(item["manifest"]),
                item["manifest_size"],
                Digest.parse(item["config"]),
                tuple(
                    ResultLayer(
                        x["role"], Digest.parse(x["digest"]), Digest.parse(x["diff_id"]), x["size"], x["mediaType"]
                    )
                    for x in item["layers"]
                ),
            )
            for name, item in value["platforms"].items()
        ),
    )


def _guarded(parse: Callable[[], T], where: str) -> T:
    try:
        return parse()
    except ImagebuildError as error:
        raise InputError("lock.bad", f"{where}: {error.message}", hint=f"write it anew: {HINT}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "lock.bad",
            f"{where}: not a lock of this version ({type(error).__name__}: {error})",
            hint=f"write it anew: {HINT}",
        ) from error


HINT = "imagebuild lock TARGET"


def parse_lock(data: bytes, where: str) -> Lock:
    """Reads a lock; `where` names the file.

    Raises InputError `lock.bad` for a text that is no lock, InputError `lock.layer-format` for one of another format,
    RefusedError `lock.content-id` where the recorded content id is not that of the inputs.
    """
    value = load_json(data, where)
    if not isinstance(value, dict) or value.get("kind") != "lock" or value.get("schema") != SCHEMA:
        raise InputError(
            "lock.bad",
            f"{where}: not a lock file of schema {SCHEMA} (or an unresolved merge)",
            hint=f"write it anew: {HINT}",
        )
    lock = _guarded(
        lambda: Lock(_parse_inputs(value["inputs"]), _parse_result(value["result"]), dict(value.get("notes") or {})),
        where,
    )
    if lock.inputs.layer_format != LAYER_FORMAT:
        raise InputError(
            "lock.layer-format",
            f"{where}: written for other layer rules than this imagebuild knows",
            expected=str(LAYER_FORMAT),
            found=str(lock.inputs.layer_format),
            hint=f"use the imagebuild that wrote it, or write it anew: {HINT}",
        )
    if lock.inputs.content_id != lock.result.content_id:
        raise RefusedError(
            "lock.content-id",
            f"{where}: the inputs do not have the recorded content id (edited or merged by hand?)",
            expected=str(lock.result.content_id),
            found=str(lock.inputs.content_id),
            hint=f"write it anew: {HINT}",
        )
    return lock


def load_lock(path: Path) -> Lock | None:
    """The lock stored at `path`, None where there is none; raises as parse_lock."""
    if not path.exists():
        return None
    with io_faults(path, "reading"):
        data = path.read_bytes()
    return parse_lock(data, str(path))


def store_lock(path: Path, lock: Lock) -> None:
    atomic_write(path, format_lock(lock))
