"""Keyless signatures through the package `sigstore` (extra `keyless`): the one module that knows it.

Somebody's identity is vouched for by a certificate of ten minutes, and the signature's time by a public log.  Verifying needs a
trust root (a file, or the public instance's, which the library fetches); signing needs the network, an identity token
and leaves the identity in a public log for ever.  The library speaks to the network by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.attest.dsse import PAYLOAD_TYPE, VerifiedPayload
from imagebuild.attest.statement import Statement, Subject
from imagebuild.attest.trust import Identity
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.host.environment import variable

TOKEN_VARIABLE = "SIGSTORE_ID_TOKEN"  # a name, as Sigstore's own programs call it


def require_library() -> None:
    """Raises UnavailableError `attest.missing-extra` without the package."""
    try:
        import sigstore  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            "attest.missing-extra",
            "keyless signatures need the package sigstore",
            hint="pip install 'imagebuild[keyless]'",
        ) from error


@dataclass
class KeylessVerifier:
    """Verifies bundles under a certificate of one identity.  Mutable: the trust root is read when it is first needed, `root` being
    its file, or None for the public instance's."""

    identity: Identity
    root: Path | None = None
    _verifier: Any = field(default=None, repr=False)

    def verify(self, raw: bytes) -> VerifiedPayload:
        """The payload of a bundle that the identity signed: certificate chain, its entry in the certificate log, the entry in the
        transparency log with its inclusion proof, the time, and the envelope's signature.

        Raises RefusedError `attest.bad-certificate`, `attest.unknown-payload-type`; UnavailableError
        `attest.trust-root-unavailable` where the public instance's trust root is not to be had; InputError
        `attest.bad-trust-root` for a file that is none.
        """
        from sigstore.models import Bundle
        from sigstore.verify.policy import Identity as Policy

        verifier = self.open()
        try:
            kind, payload = verifier.verify_dsse(
                Bundle.from_json(raw), Policy(identity=self.identity.name, issuer=self.identity.issuer)
            )
        except Exception as error:  # whatever a stranger's bundle brings the library to raise, it is not verified
            raise RefusedError(
                "attest.bad-certificate",
                f"a bundle under a certificate does not verify: {_text(error)}",
                expected=str(self.identity),
            ) from error
        if kind != PAYLOAD_TYPE:
            raise RefusedError(
                "attest.unknown-payload-type",
                "an envelope holds something else than an in-toto statement",
                expected=PAYLOAD_TYPE,
                found=kind[:100],
            )
        return VerifiedPayload(bytes(payload), frozenset())

    def open(self) -> Any:
        """The library's verifier.  Raises as `verify`; call it first, so that a wrong file is told before anything is asked."""
        if self._verifier is None:
            from sigstore.models import TrustedRoot
            from sigstore.verify import Verifier

            if self.root is None:
                self._verifier = Verifier(trusted_root=_public_instance().trusted_root)
            else:
                try:
                    self._verifier = Verifier(trusted_root=TrustedRoot.from_file(str(self.root)))
                except Exception as error:
                    raise InputError(
                        "attest.bad-trust-root",
                        f"{self.root} is no trust root that can be read: {_text(error)}",
                        expected="a Sigstore trusted_root.json",
                    ) from error
        return self._verifier


def _public_instance() -> Any:
    from sigstore.models import ClientTrustConfig

    try:
        return ClientTrustConfig.production()
    except Exception as error:  # of TUF, of the network, of a folder that cannot be written
        raise UnavailableError(
            "attest.trust-root-unavailable",
            f"the trust root of the public Sigstore instance could not be fetched: {_text(error)}",
            hint="--trusted-root FILE needs no network",
        ) from error


@dataclass(frozen=True, slots=True)
class KeylessSigner:
    """Signs statements under a certificate; `sign` gives the bundle's JSON text for a payload."""

    identity: Identity
    sign: Callable[[bytes], bytes]

    def bundle(self, statement: Statement) -> tuple[Statement, bytes]:
        """What was signed, and the bundle.  The library wants a name for each subject: the digest where there is none."""
        subjects = tuple(Subject(s.digest, s.name or str(s.digest)) for s in statement.subjects)
        named = Statement(subjects, statement.predicate_type, statement.predicate)
        return named, self.sign(named.format())


def open_keyless(context: Any = None, token: str | None = None) -> KeylessSigner:
    """A signer for the identity of `token`: by default of the variable SIGSTORE_ID_TOKEN, else of the CI that this runs in.
    `context` is the library's SigningContext, by default the public instance's.

    Nothing is asked for on a terminal and no browser is opened.  Raises InputError `attest.no-identity-token`; UnavailableError
    `attest.trust-root-unavailable`, `attest.keyless-failed`.
    """
    from sigstore.dsse import Statement as TheirStatement
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential
    from sigstore.sign import SigningContext

    try:
        text = token or variable(TOKEN_VARIABLE) or detect_credential()
        if text is None:
            raise _no_token(f"neither {TOKEN_VARIABLE} nor this machine gives an identity token")
        identity = IdentityToken(text)
    except IdentityError as error:
        raise _no_token(f"the identity token is not accepted: {_text(error)}") from error
    opened = context or SigningContext.from_trust_config(_public_instance())

    def sign(payload: bytes) -> bytes:
        try:
            with opened.signer(identity) as signer:
                return bytes(signer.sign_dsse(TheirStatement(payload)).to_json().encode("utf-8"))
        except ImagebuildError:
            raise
        except Exception as error:  # of the certificate authority, of the log, of the network
            raise UnavailableError(
                "attest.keyless-failed",
                f"nothing was signed: {_text(error)}",
                hint="run the command again with a fresh identity token, or sign with --key",
            ) from error

    return KeylessSigner(Identity(identity.identity, identity.federated_issuer), sign)


def _no_token(why: str) -> InputError:
    return InputError(
        "attest.no-identity-token",
        why,
        hint=f"set {TOKEN_VARIABLE}; in GitHub Actions give the job `permissions: {{id-token: write}}`",
    )


def _text(error: BaseException) -> str:
    """One line of an exception, with its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
