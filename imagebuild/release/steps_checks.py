"""The steps that need evidence: smoke and GSM8K, run here where that is possible, else made elsewhere and imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.release.evidence import HERE, UNSIGNED, CheckEvidence
from imagebuild.release.state import Release
from imagebuild.release.step import Action, Decision, step_id


class CheckStep:
    """One check for every platform of the image: good evidence on record, or a run that leaves it."""

    def __init__(self, release: Release, check: str) -> None:
        self._release = release
        self.name = check

    def decide(self) -> Decision:
        release, request = self._release, self._release.request
        asked = request.asks_for(self.name)
        if asked is None:
            return Decision(Action.NOT_ASKED, f"neither the target nor the policy asks for {self.name}")
        found = release.of_check(self.name)
        missing = [name for name in request.images if name not in found]
        id = step_id(
            self.name,
            {
                "content_id": str(request.content_id),
                "images": {name: str(digest) for name, digest in request.images.items()},
                "evidence": {name: str(item.digest) for name, item in found.items()},
                "verdicts": list(request.good_verdicts(self.name)),
            },
        )
        if missing:
            known = release.journal.finished(self.name)
            why = "never ran" if known is None else "the evidence on record is of another image, or too old"
            return Decision(Action.RUN, f"{why}: {', '.join(missing)} (asked for by {asked})", id)
        bad = {name: item for name, item in found.items() if item.verdict not in request.good_verdicts(self.name)}
        if bad:
            told = ", ".join(f"{name} {item.verdict}" for name, item in bad.items())
            return Decision(Action.RUN, f"the evidence on record says {told}", id)
        shown = ", ".join(dict.fromkeys(self._shown(item) for item in found.values()))
        if all(item.origin == HERE for item in found.values()):
            return Decision(Action.DONE, shown, id)
        own = request.signer.public_key if request.signer is not None else None
        elsewhere = any(item.origin == UNSIGNED or all(k.key != own for k in item.keys) for item in found.values())
        return Decision(Action.IMPORTED if elsewhere else Action.DONE, shown, id)

    def _shown(self, item: CheckEvidence) -> str:
        name = self._release.tools.workspace.shown(Path(item.file))
        by = {HERE: "made here", UNSIGNED: "UNSIGNED, which the policy allows"}.get(
            item.origin, f"signed by {item.signers}"
        )
        return f"{item.verdict}: {name}, {by}"

    def run(self) -> Mapping[str, Any]:
        """Raises RefusedError `release.check-failed`, UnavailableError `release.check-not-run`, and what the check
        raises."""
        release, request = self._release, self._release.request
        check = release.tools.checks.get(self.name)
        ignored = release.evidence().ignored
        words = "nothing here runs it"
        if check is not None:
            try:
                words = check()
            except UnavailableError as error:
                words = error.message
            release.evidence(anew=True)
        found = release.of_check(self.name)
        missing = [name for name in request.images if name not in found]
        if missing:
            raise self._not_run(f"{', '.join(missing)}: {words}", ignored)
        bad = {name: item for name, item in found.items() if item.verdict not in request.good_verdicts(self.name)}
        if bad:
            raise RefusedError(
                "release.check-failed",
                f"{self.name} of {request.name}: "
                + ", ".join(f"{name} {item.verdict} ({item.file})" for name, item in bad.items()),
                expected=" or ".join(request.good_verdicts(self.name)),
                found=", ".join(sorted({item.verdict for item in bad.values()})),
                hint=f"imagebuild explain release.check-failed; the run: {words}",
            )
        return self.result()

    def _not_run(self, why: str, ignored: tuple[str, ...]) -> UnavailableError:
        request = self._release.request
        return UnavailableError(
            "release.check-not-run",
            f"{self.name} of {request.name} is asked for, and there is no evidence of it: {why}",
            expected=", ".join(f"{digest} ({name})" for name, digest in request.images.items()),
            found="; ".join(ignored[:3]) or "none on record",
            hint="where it can run: imagebuild release sign-evidence DIR --key KEY; then here:"
            f" imagebuild release import-evidence DIR --target {request.name}",
            details={"ignored": list(ignored)},
        )

    def result(self) -> dict[str, Any]:
        """What stands for the check, by platform: the same whether it is signed yet or not."""
        found = self._release.of_check(self.name)
        return {name: {"verdict": item.verdict, "evidence": str(item.digest)} for name, item in found.items()}

    def files(self) -> dict[str, Any]:
        """The same with where it lies and who signed it, once everything is signed."""
        space = self._release.tools.workspace
        return {
            name: {
                "verdict": item.verdict,
                "evidence": str(item.digest),
                "file": space.shown(Path(item.file)),
                "signed_by": [key.name for key in item.keys],
            }
            for name, item in self._release.of_check(self.name).items()
        }
