"""The content part of `verify` (cli.md): an image against a lock, or against what it says itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from imagebuild.build.derived import provenance_files
from imagebuild.build.image import BaseDocuments, derive_documents
from imagebuild.build.labels import BASE_DIGEST, CONTENT_ID, TARGET, labels_for
from imagebuild.build.layer_data import image_path
from imagebuild.build.untouched import untouched_checks
from imagebuild.build.verification import Check, Verification, difference_checks, equal, json_differences
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.layer.entry import Entry, Kind, LayerFacts
from imagebuild.layer.tar_reader import read_layer
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import ImageConfig, Manifest
from imagebuild.oci.json_text import plain
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import Child, ImageTree
from imagebuild.target.lock_types import LayerItem, Lock, PlatformInputs, PlatformResult

ReadLayer = Callable[[ImageSource, Descriptor], LayerFacts]


def read_facts(source: ImageSource, descriptor: Descriptor) -> LayerFacts:
    """All facts of one layer, its digest verified."""
    stream = source.open_blob(descriptor, "layer")
    try:
        return read_layer(stream, descriptor)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def expected_rows(items: tuple[LayerItem, ...], known: Mapping[str, Digest]) -> dict[str, dict[str, Any]]:
    """What each entry of a layer must be, by image path; `known` gives digests of files without a locked postimage."""
    out: dict[str, dict[str, Any]] = {}
    for item in items:
        if item.kind == "whiteout":
            out[item.path] = {"kind": "whiteout"}
            continue
        row: dict[str, Any] = {
            "kind": item.kind,
            "mode": f"{0o777 if item.kind == 'symlink' else item.mode:04o}",
            "owner": f"{item.uid}:{item.gid}",
            "mtime": item.mtime,
            "xattrs": dict(item.xattrs),
        }
        if item.kind == "file":
            row["sha256"] = str(item.postimage if item.postimage is not None else known.get(item.path))
        if item.kind == "symlink":
            row["link"] = item.link
        out[item.path] = row
    return out


def found_rows(facts: LayerFacts) -> dict[str, dict[str, Any]]:
    """The same of a layer that was read."""
    out = {image_path(path): _row(entry) for path, entry in facts.entries.items()}
    for path in facts.whiteouts:
        out.setdefault(image_path(path), {"kind": "whiteout"})
    for path in facts.opaques:
        out[image_path(path) + "/.wh..wh..opq"] = {"kind": "opaque"}
    return out


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": entry.kind.value,
        "mode": f"{entry.mode:04o}",
        "owner": f"{entry.uid}:{entry.gid}",
        "mtime": entry.mtime,
        "xattrs": {name: value.hex() for name, value in entry.xattrs},
    }
    if entry.kind is Kind.FILE:
        row["sha256"] = str(entry.sha256)
    if entry.link:
        row["link"] = entry.link
    return row


class ImageVerifier:
    """Checks one image tree against a lock."""

    def __init__(
        self,
        lock: Lock,
        base: BaseDocuments,
        read: ReadLayer = read_facts,
    ) -> None:
        self.lock = lock
        self.base = base
        self._read = read
        self.recompressed = False
        self._known: dict[Digest, LayerFacts] = {}

    def verify(self, reference: str, source: ImageSource, tree: ImageTree) -> Verification:
        """Never raises for an image that is wrong; raises UnavailableError only where nothing at all could be read."""
        inputs, result = self.lock.inputs, self.lock.result
        checks: list[Check] = []
        single = tree.index is None
        expected_top = result.digest
        if single and inputs.is_index:
            expected_top = next((p.manifest for p in result.platforms if p.platform in tree.children), result.digest)
        top = equal(
            "verify.digest", "the image is the one that the lock names", str(expected_top), str(tree.top.digest)
        )
        platform_checks: list[Check] = []
        for platform in inputs.platforms:
            child = tree.children.get(platform.platform)
            if child is None:
                if not single:
                    platform_checks.append(
                        Check(
                            "verify.platform",
                            False,
                            f"the image has no {platform.platform}",
                            str(platform.platform),
                            "absent",
                        )
                    )
                continue
            platform_checks += self._platform(source, platform, child)
        for other in tree.children:
            if other not in {platform.platform for platform in inputs.platforms}:
                platform_checks.append(
                    Check("verify.platform", False, f"{other} is not in the lock", "absent", str(other))
                )
        for other_image in tree.others:
            platform_checks.append(
                Check(
                    "verify.platform",
                    False,
                    "the index lists an image that is not in the lock",
                    "absent",
                    str(other_image.digest),
                )
            )
        if top.passed is False and self.recompressed and all(check.passed for check in platform_checks):
            # the same content under other stored bytes: the digest cannot be equal, and everything else was
            top = Check(
                "verify.recompressed", True, "layers were compressed anew by somebody; content agrees by diff_id",
                top.expected, top.found,
            )  # fmt: skip
        checks.append(top)
        checks += platform_checks
        if tree.index is not None and top.code == "verify.digest":
            annotations = tree.index.value.get("annotations") or {}
            wanted = labels_for(inputs, inputs.base_digest, {}) if _annotated(tree.index.media_type) else {}
            checks += difference_checks(
                "verify.annotations",
                "annotations of the index",
                [*json_differences(wanted, _ours(annotations, wanted))],
            )
        for platform in inputs.platforms:
            for text in platform.not_proven:
                checks.append(
                    Check(
                        "verify.unproven",
                        None,
                        f"not proven when locking ({platform.platform}): {text}",
                        required=False,
                    )
                )
        return Verification(reference, tree.top.digest, tuple(checks), self.recompressed)

    def _platform(self, source: ImageSource, platform: PlatformInputs, child: Child) -> list[Check]:
        name = str(platform.platform)
        base_manifest, base_config = self.base.manifests[name], self.base.configs[name]
        result = next(p for p in self.lock.result.platforms if p.platform == platform.platform)
        count = len(base_manifest.layers)
        prefix = self._prefix(name, base_manifest, base_config, child)
        checks = [prefix]
        under = [prefix]
        ours = child.manifest.layers[count:]
        diff_ids = child.config.diff_ids[count:]
        checks.append(equal("verify.layer-count", f"layers above the base ({name})", len(result.layers), len(ours)))
        for made, descriptor, diff_id in zip(result.layers, ours, diff_ids, strict=False):
            layer = self._layer(source, name, platform, made.role, made.diff_id, descriptor, diff_id)
            under = [*under, *layer] if made.role == "artefacts" else under
            checks += layer
        untouched = self.lock.inputs.wanted.get("untouched", ())
        read = [self._known.get(descriptor.digest) for descriptor in ours]
        checks += untouched_checks(untouched, platform.roots, read, prefix, name)
        checks[1:1] = self._identity(name, platform, under)
        checks += self._config(name, platform, result, base_manifest, base_config, child)
        return checks

    def _prefix(self, name: str, base: Manifest, config: ImageConfig, child: Child) -> Check:
        count = len(base.layers)
        what = f"the base's {count} layers come first, verbatim ({name})"
        found = child.manifest.layers[:count]
        if [layer.to_json() for layer in found] == [layer.to_json() for layer in base.layers]:
            return Check("verify.base-prefix", True, what)
        if child.config.diff_ids[:count] == config.diff_ids:
            self.recompressed = True
            return Check("verify.base-prefix", True, f"the base's {count} layers come first, recompressed ({name})")
        for number, (expected, have) in enumerate(zip(base.layers, found, strict=False), 1):
            if expected.to_json() != have.to_json():
                return Check(
                    "verify.base-prefix", False, f"{what}: layer {number}", str(expected.digest), str(have.digest)
                )
        return Check("verify.base-prefix", False, what, f"{count} layers", f"{len(found)} layers")

    def _identity(self, name: str, platform: PlatformInputs, under: Sequence[Check]) -> list[Check]:
        """What `identity` says was compared with the package metadata of base and wheels when locking; it holds for this image exactly
        where those layers are the locked ones (`under`), and no change touches that metadata."""
        declared = self.lock.inputs.wanted.get("identity", {})
        touched = [
            item.path for item in platform.changes if item.path.endswith((".dist-info/METADATA", ".egg-info/PKG-INFO"))
        ]
        out = []
        for package, version in declared.items():
            text = f"{package} is {version}, as package metadata said when locking ({name})"
            passed = None if touched else _all(check.passed for check in under)
            out.append(Check("verify.identity", passed, text))
        return out

    def _layer(
        self,
        source: ImageSource,
        name: str,
        platform: PlatformInputs,
        role: str,
        locked: Digest,
        descriptor: Descriptor,
        diff_id: Digest,
    ) -> list[Check]:
        what = f"the {role} layer ({name})"
        try:
            facts = self._known.get(descriptor.digest) or self._read(source, descriptor)
            self._known[descriptor.digest] = facts
        except UnavailableError as error:
            return [Check("verify.layer", None, f"{what} could not be read: {error.message}")]
        except ImagebuildError as error:
            return [Check("verify.layer", False, f"{what}: {error.message}", error.expected, error.found)]
        checks = [
            equal("verify.diff-id", f"{what}: the config's diff_id is the layer's", str(facts.diff_id), str(diff_id))
        ]
        items = platform.artefacts if role == "artefacts" else platform.changes
        provenance = provenance_files(self.lock.inputs, platform.changes, platform.artefacts)
        known = {path: Digest.of(data) for path, data in provenance.items()}
        differences = [*json_differences(expected_rows(items, known), found_rows(facts), "")]
        checks += difference_checks("verify.layer-content", f"{what} holds exactly the declared entries", differences)
        if facts.diff_id != locked:
            checks.append(equal("verify.layer-bytes", f"{what}: the tar's bytes", str(locked), str(facts.diff_id)))
        return checks

    def _config(
        self,
        name: str,
        platform: PlatformInputs,
        result: PlatformResult,
        base_manifest: Manifest,
        base_config: ImageConfig,
        child: Child,
    ) -> list[Check]:
        config_raw, manifest_raw = derive_documents(
            self.lock.inputs, platform, base_manifest, base_config, result.layers
        )
        expected_config = plain(ImageConfig.parse(config_raw).value)
        found_config = plain(child.config.value)
        checks = difference_checks(
            "verify.config", f"the config is the base's with the declared changes ({name})",
            [*json_differences(expected_config, found_config)],
        )  # fmt: skip
        if not self.recompressed:
            expected_manifest = plain(Manifest.parse(manifest_raw, base_manifest.media_type).value)
            found_manifest = plain(child.manifest.value)
            checks += difference_checks(
                "verify.manifest", f"the manifest is the base's with the declared changes ({name})",
                [*json_differences(expected_manifest, found_manifest)],
            )  # fmt: skip
        return checks


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False where one is, else None where one is, else True."""
    known = list(answers)
    return False if False in known else None if None in known else True


def _annotated(media_type: str) -> bool:
    family = mt.family_of(media_type)
    return family is not None and family.annotations


def _ours(annotations: Any, wanted: Mapping[str, str]) -> dict[str, Any]:
    return {key: value for key, value in plain(annotations).items() if key in wanted}


def verify_claims(
    reference: str,
    source: ImageSource,
    tree: ImageTree,
    base_tree: Callable[[str, Digest], ImageTree] | None,
    read: ReadLayer = read_facts,
) -> Verification:
    """An image without a lock: its labels are claims.  What follows from its own bytes and its base's is checked, the rest
    is `not-checked` (passed None)."""
    checks: list[Check] = []
    for platform, child in tree.children.items():
        labels = child.config.labels
        name = str(platform)
        if CONTENT_ID not in labels or TARGET not in labels:
            checks.append(Check("verify.claim", None, f"{name} carries no labels of imagebuild: nothing is claimed"))
            continue
        checks.append(_claimed_base(name, labels, child, base_tree))
        count = _base_count(child, base_tree)
        for descriptor, diff_id in zip(child.manifest.layers[count:], child.config.diff_ids[count:], strict=True):
            try:
                facts = read(source, descriptor)
                checks.append(equal("verify.diff-id", f"a layer of ours ({name})", str(diff_id), str(facts.diff_id)))
            except UnavailableError as error:
                checks.append(Check("verify.layer", None, f"a layer could not be read: {error.message}"))
            except RefusedError as error:
                checks.append(Check("verify.layer", False, error.message, error.expected, error.found))
        checks.append(
            Check(
                "verify.content-id", None,
                f"the label says {labels[CONTENT_ID]} of target {labels[TARGET]}; only a lock or a signed statement can prove it ({name})",
            )
        )  # fmt: skip
    if not checks:
        checks.append(Check("verify.claim", None, "the image has no platform that could be read"))
    return Verification(reference, tree.top.digest, tuple(checks))


def _claimed_base(
    name: str, labels: Mapping[str, str], child: Child, base_tree: Callable[[str, Digest], ImageTree] | None
) -> Check:
    base = _base_child(labels, base_tree)
    text = f"{labels.get('org.opencontainers.image.base.name')}@{labels.get(BASE_DIGEST)}"
    if base is None:
        return Check("verify.base-prefix", None, f"the claimed base {text} could not be read ({name})")
    count = len(base.manifest.layers)
    same = child.config.diff_ids[:count] == base.config.diff_ids
    return Check("verify.base-prefix", same, f"the layers begin with those of the claimed base {text} ({name})")


def _base_count(child: Child, base_tree: Callable[[str, Digest], ImageTree] | None) -> int:
    base = _base_child(child.config.labels, base_tree)
    if base is not None:
        return len(base.manifest.layers)
    return max(0, len(child.manifest.layers) - 2)


def _base_child(labels: Mapping[str, str], base_tree: Callable[[str, Digest], ImageTree] | None) -> Child | None:
    if base_tree is None or BASE_DIGEST not in labels:
        return None
    try:
        tree = base_tree(labels.get("org.opencontainers.image.base.name", ""), Digest.parse(labels[BASE_DIGEST]))
    except ImagebuildError:
        return None
    return next(iter(tree.children.values()), None)
