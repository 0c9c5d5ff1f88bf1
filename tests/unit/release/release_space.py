"""A published target in a small workspace, with keys, a policy and evidence, for the tests of releases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.attest.dsse import sign_payload
from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.attest.predicates.check_result import check_result
from imagebuild.attest.predicates.types import TEST_RESULT
from imagebuild.attest.statement import Statement
from imagebuild.content.digest import Digest
from imagebuild.testing.registry_double import RegistryDouble
from imagebuild.testing.small_engine import SmallWorkspace

TIME = 1_790_000_000
POLICY = """schema: 1
keys:
  builder: {file: builder.pub, role: builder}
  tester: {file: tester.pub, role: tester}
require: [{predicate: image}, {predicate: provenance}, {predicate: sbom}, {predicate: release}]
"""


@dataclass
class Space:
    """The workspace, its registry (`repository` is HOST/PATH) and two pairs of keys."""

    small: SmallWorkspace
    registry: RegistryDouble
    builder: KeySigner
    tester: KeySigner

    @property
    def root(self) -> Path:
        return self.small.root

    @property
    def repository(self) -> str:
        return f"{self.registry.host}/me/engine"

    @property
    def key(self) -> tuple[str, str]:
        return ("--key", str(self.root / "builder.key"))

    def images(self) -> dict[str, Digest]:
        platforms = self.small.lock()["result"]["platforms"]
        return {name: Digest.parse(item["manifest"]) for name, item in platforms.items()}

    def target(self, **keys: Any) -> None:
        """Writes target.yaml anew and locks."""
        publish = {"repository": self.repository, "tag": "{base.tag}-tuned", "arch_tag": "{base.tag}-tuned-{arch}"}
        self.small.write_target(publish=publish, **keys)

    def policy(self, text: str = "") -> None:
        (self.root / "policy.yaml").write_text(POLICY + text)

    def writes(self) -> list[str]:
        """Requests since the log was cleared that change something in the registry."""
        return [r.line for r in self.registry.requests() if r.method in ("PUT", "POST", "PATCH", "DELETE")]

    def tags(self) -> dict[str, str]:
        return {tag: str(digest) for tag, digest in self.registry.repository("me/engine").tags.items()}

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Every file of the workspace with its time: rewriting equal bytes shows too."""
        return {
            str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def release_file(self) -> dict[str, Any]:
        """The statement in release.dsse.json, unverified."""
        return payload_of(self.small.folder() / "release.dsse.json")


def payload_of(path: Path) -> dict[str, Any]:
    import base64

    value: dict[str, Any] = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))
    return value


def make_keys(root: Path) -> tuple[KeySigner, KeySigner]:
    builder, tester = KeySigner.make(), KeySigner.make()
    store_key_pair(builder, root / "builder", None)
    store_key_pair(tester, root / "tester", None)
    return builder, tester


def result(check: str, verdict: str, image: Digest, finished: int = TIME, **configuration: Digest) -> bytes:
    """A bare statement of a check about one image, as a check leaves it."""
    predicate = check_result(
        check,
        verdict,
        configuration={name.replace("_", " "): digest for name, digest in configuration.items()},
        evidence={"evidence.json": image},
        finished=finished,
    )
    return Statement.about(image, TEST_RESULT, predicate).format()


def write_result(folder: Path, data: bytes, name: str = "statement.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def write_signed(folder: Path, data: bytes, signer: KeySigner, name: str = "statement.dsse.json") -> Path:
    return write_result(folder, sign_payload(data, signer.sign).format(), name)


def steps(document: Mapping[str, Any]) -> dict[str, str]:
    """Step: what was done about it."""
    return {item["step"]: item["action"] for item in document["steps"]}


def reasons(document: Mapping[str, Any]) -> dict[str, str]:
    return {item["step"]: item["reason"] for item in document["steps"]}
