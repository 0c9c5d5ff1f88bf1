"""Who signs in `sign` and `attest`, a key or an identity, and the bundles that come of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import InputError

if TYPE_CHECKING:
    from imagebuild.attest.keyless import KeylessSigner
    from imagebuild.attest.keys import Signer
    from imagebuild.attest.statement import Statement
    from imagebuild.attest.storage import Attached, EvidencePlace
    from imagebuild.attest.subjects import ImageSubject


@dataclass(frozen=True, slots=True)
class Signatory:
    """A key or an identity; exactly one of them is there."""

    key: Signer | None
    keyless: KeylessSigner | None

    def attach(self, place: EvidencePlace, statements: Iterable[tuple[ImageSubject, Statement]]) -> list[Attached]:
        """Signs each statement and stores it about its subject.  Raises what signing and storing raise."""
        from imagebuild.attest.storage import attach_bundle, attach_statement
        from imagebuild.host.clock import now

        out = []
        for subject, statement in statements:
            if self.keyless is not None:
                named, bundle = self.keyless.bundle(statement)
                out.append(attach_bundle(place, subject.descriptor, named, bundle, now()))
            else:
                assert self.key is not None
                out.append(attach_statement(place, subject.descriptor, statement, self.key, now()))
        return out


def signatory_of(arguments: argparse.Namespace) -> Signatory:
    """Raises InputError `cli.usage` unless there is either a key or --keyless, and what opening them raises."""
    if (arguments.key is None) == (not arguments.keyless):
        raise InputError(
            "cli.usage",
            "say what signs",
            expected="--key KEY or --keyless, one of them",
            hint="imagebuild keygen makes a key",
        )
    if arguments.keyless:
        from imagebuild.attest.keyless import open_keyless, require_library

        require_library()
        return Signatory(None, open_keyless())
    from imagebuild.cli.evidence_places import signer_of

    return Signatory(signer_of(arguments), None)
