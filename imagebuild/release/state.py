"""What the steps of one release share: the request, the journal, the evidence as it lies there now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuild.attest.keys import Signer
from imagebuild.attest.statement import Statement
from imagebuild.attest.storage import EvidencePlace, layout_place, registry_place
from imagebuild.build.labels import TARGET
from imagebuild.errors import InputError
from imagebuild.oci.layout import layout_current
from imagebuild.oci.platform import Platform
from imagebuild.registry.open import open_client
from imagebuild.release.evidence import CheckEvidence, FoundEvidence, find_evidence
from imagebuild.release.journal import Journal
from imagebuild.release.request import CHECKS, ReleaseRequest, Tools
from imagebuild.release.statements import MADE, lock_statement

EVIDENCE = "evidence"


class Release:
    """One run.  `planned` is True for a plan, in which nothing may be written."""

    def __init__(self, request: ReleaseRequest, tools: Tools, *, planned: bool) -> None:
        self.request = request
        self.tools = tools
        self.planned = planned
        root = tools.workspace.root
        self.folder = root / "build" / "release" / request.name
        self.layout = root / "build" / request.name
        self.journal = Journal(self.folder / "steps.json")
        self.waiver: Mapping[str, Any] | None = None
        """The waiver that was checked and passed in this run: `number`, and `expires` or None."""
        self.warnings: list[str] = []
        self._evidence: FoundEvidence | None = None
        self._statements: list[Statement] | None = None

    @property
    def evidence_folder(self) -> Path:
        return self.request.target.folder / EVIDENCE

    def built(self) -> bool:
        """Whether the image of the lock stands in the layout."""
        return layout_current(self.layout, None) == self.request.digest

    @property
    def place(self) -> EvidencePlace:
        return layout_place(self.layout)

    @property
    def published_place(self) -> EvidencePlace | None:
        """Where signatures and statements go in a registry; None where nothing is pushed."""
        repository = self.request.attestations or self.request.repository
        if not self.request.push or repository is None:
            return None
        return registry_place(open_client(self.tools.opener.registry_options()), repository)

    def signer(self) -> Signer:
        if self.request.signer is None:
            raise InputError("cli.usage", "a release is signed", expected="--key KEY")
        return self.request.signer

    def evidence(self, *, anew: bool = False) -> FoundEvidence:
        """The evidence on record, read once a run unless a check left more (`anew`)."""
        if self._evidence is None or anew:
            here = [self.tools.workspace.root / "build" / check / self.request.name for check in CHECKS]
            self._evidence = find_evidence(
                here,
                self.evidence_folder,
                self.request.trusted,
                unsigned_allowed=self.request.unsigned_allowed,
            )
        return self._evidence

    def of_check(self, check: str) -> dict[str, CheckEvidence]:
        """The evidence that counts for a check, by platform; a platform without any, or with none that is young enough for
        the policy, is left out."""
        found, oldest = self.evidence(), self.request.oldest(check)
        latest = {
            name: found.latest(check, image, self.request.content_id) for name, image in self.request.images.items()
        }
        return {name: item for name, item in latest.items() if item is not None and item.finished >= oldest}

    def good_evidence(self) -> dict[str, list[CheckEvidence]] | None:
        """For each check that is asked for, its evidence in the order of the platforms, each once; None while one of them
        has none that is good for every platform."""
        out: dict[str, list[CheckEvidence]] = {}
        for check in CHECKS:
            if self.request.asks_for(check) is None:
                continue
            found = self.of_check(check)
            verdicts = self.request.good_verdicts(check)
            if len(found) < len(self.request.images) or any(x.verdict not in verdicts for x in found.values()):
                return None
            out[check] = list({item.digest: item for item in found.values()}.values())
        return out

    def statements(self) -> list[Statement]:
        """Provenance, SBOM and, where overlays fix something, VEX of every platform, in the platforms' order."""
        if self._statements is None:
            request = self.request
            made = [
                lock_statement(
                    word, request.lock, item.platform, request.overlays, self.tools.contents.get, request.builder
                )
                for item in request.lock.result.platforms
                for word in MADE
            ]
            self._statements = [statement for statement in made if statement is not None]
        return self._statements

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels by which an image is known as this target's (a tag that points at one may be moved)."""
        return {TARGET: self.request.name}

    def platform_of(self, statement: Statement) -> Platform:
        return next(p.platform for p in self.request.lock.result.platforms if statement.names(p.manifest))
