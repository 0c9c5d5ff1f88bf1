"""Keyless signatures against the real library and an instance in memory, without a network."""

from __future__ import annotations

import base64
import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import NOW, Stored, stored

from imagebuild.attest.check import Check
from imagebuild.attest.evidence import gather, signature_checks
from imagebuild.attest.keyless import KeylessVerifier, open_keyless, require_library
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.image_signature import TYPE, image_signature
from imagebuild.attest.statement import Statement
from imagebuild.attest.storage import attach_bundle
from imagebuild.attest.trust import Identity, TrustedKey
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.target.policy import Requirement

pytest.importorskip("sigstore")
from keyless_instance import ISSUER, NAME, Instance, sign

ME = Identity(NAME, ISSUER)


@pytest.fixture(scope="module")
def instance() -> Instance:
    return Instance()


@pytest.fixture
def judge(instance: Instance, tmp_path: Path) -> KeylessVerifier:
    return KeylessVerifier(ME, instance.trusted_root(tmp_path))


@pytest.fixture
def image(tmp_path: Path) -> Stored:
    return stored(tmp_path)


def attach(image: Stored, instance: Instance, subject: int, said: int | None = None, **certificate: Any) -> None:
    statement = image_signature(image.subjects[subject if said is None else said].digest)
    raw = json.dumps(instance.bundle(statement.format(), **certificate)).encode()
    attach_text(image, subject, raw)


def attach_text(image: Stored, subject: int, raw: bytes) -> None:
    descriptor = image.subjects[subject].descriptor
    attach_bundle(image.place, descriptor, image_signature(descriptor.digest), raw, NOW)


def checks(image: Stored, judge: KeylessVerifier | None, *signers: KeySigner, threshold: int = 1) -> list[Check]:
    keys = [TrustedKey("k", signer.public_key) for signer in signers]
    evidence = gather(image.place.source, image.subjects, keys, judge)
    return signature_checks(evidence, keys, threshold, None if judge is None else judge.identity)


def test_what_the_identity_signed_counts_for_what_it_names(
    image: Stored, instance: Instance, judge: KeylessVerifier
) -> None:
    attach(image, instance, 0)
    found = checks(image, judge)
    assert [check.passed for check in found] == [True, False, False]
    assert NAME in str(found[0].found)
    attach(image, instance, 1, said=0)
    assert [check.passed for check in checks(image, judge)] == [True, False, False]


@pytest.mark.parametrize(
    "certificate",
    [{"name": "somebody@example.com"}, {"issuer": "https://accounts.example.org"}, {"issuer": ISSUER + "/"}],
)
def test_another_identity_or_issuer(
    image: Stored, instance: Instance, judge: KeylessVerifier, certificate: dict[str, str]
) -> None:
    attach(image, instance, 0, **certificate)
    check = checks(image, judge)[0]
    assert check.passed is False
    assert "attest.bad-certificate" in str(check.found)


def test_another_instance_is_not_trusted(image: Stored, judge: KeylessVerifier) -> None:
    attach(image, Instance(), 0)
    assert checks(image, judge)[0].passed is False


def flipped(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    return base64.b64encode(bytes(data)).decode()


def without_log(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"]["tlogEntries"] = []


def altered_payload(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(b'{"_type": "another"}').decode()


def altered_signature(bundle: dict[str, Any]) -> None:
    signature = bundle["dsseEnvelope"]["signatures"][0]
    signature["sig"] = flipped(signature["sig"])


def altered_promise(bundle: dict[str, Any]) -> None:
    promise = bundle["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]
    promise["signedEntryTimestamp"] = flipped(promise["signedEntryTimestamp"])


def altered_time(bundle: dict[str, Any]) -> None:
    entry = bundle["verificationMaterial"]["tlogEntries"][0]
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 3600)


def not_json(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"]["certificate"] = {"rawBytes": "AAAA"}


@pytest.mark.parametrize(
    "change", [without_log, altered_payload, altered_signature, altered_promise, altered_time, not_json]
)
def test_tampered_bundles(
    image: Stored, instance: Instance, judge: KeylessVerifier, change: Callable[[dict[str, Any]], None]
) -> None:
    good = instance.bundle(image_signature(image.subjects[0].digest).format())
    bad = copy.deepcopy(good)
    change(bad)
    attach_text(image, 0, json.dumps(bad).encode())
    assert checks(image, judge)[0].passed is False
    attach_text(image, 0, json.dumps(good).encode())
    assert checks(image, judge)[0].passed


def test_the_log_entry_of_another_signature(image: Stored, instance: Instance, judge: KeylessVerifier) -> None:
    payload = image_signature(image.subjects[0].digest).format()
    one, other = instance.bundle(payload), instance.bundle(payload)
    one["verificationMaterial"]["tlogEntries"] = other["verificationMaterial"]["tlogEntries"]
    attach_text(image, 0, json.dumps(one).encode())
    assert checks(image, judge)[0].passed is False


def test_another_payload_type_and_another_predicate(image: Stored, instance: Instance, judge: KeylessVerifier) -> None:
    digest = image.subjects[0].digest
    raw = json.dumps(instance.bundle(image_signature(digest).format(), payload_type="text/plain")).encode()
    with pytest.raises(RefusedError) as caught:
        judge.verify(raw)
    assert caught.value.code == "attest.unknown-payload-type"
    other = Statement.about(digest, "https://example.com/review/v1", {})
    attach_text(image, 0, json.dumps(instance.bundle(other.format())).encode())
    assert checks(image, judge)[0].passed is False


def test_without_an_identity_asked_for_a_certificate_counts_for_nothing(
    image: Stored, instance: Instance, signer: KeySigner
) -> None:
    attach(image, instance, 0)
    check = checks(image, None, signer)[0]
    assert check.passed is False
    assert "attest.no-trust-root" in str(check.found)


def test_a_key_and_an_identity_are_two(
    image: Stored, instance: Instance, judge: KeylessVerifier, signer: KeySigner
) -> None:
    attach(image, instance, 0)
    attach(image, instance, 0)
    assert checks(image, judge, signer, threshold=2)[0].passed is False
    image.attach(0, image_signature(image.subjects[0].digest), signer)
    assert checks(image, judge, signer, threshold=2)[0].passed


def test_a_policy_knows_keys_only(image: Stored, instance: Instance, judge: KeylessVerifier, signer: KeySigner) -> None:
    attach(image, instance, 0)
    evidence = gather(image.place.source, image.subjects, [], judge)
    assert evidence[0].of_type(TYPE)
    assert evidence[0].limited_to([]).verified == ()
    assert image.judge({"k": (signer, "builder")}, require=(Requirement("image"),))[3].passed is False


def test_a_trust_root_that_is_not_to_be_had_is_not_a_wrong_signature(
    image: Stored, instance: Instance, monkeypatch: pytest.MonkeyPatch, signer: KeySigner
) -> None:
    from sigstore.models import ClientTrustConfig

    def unreachable() -> None:
        raise OSError("no network")

    judge = KeylessVerifier(ME)
    monkeypatch.setattr(ClientTrustConfig, "production", unreachable)
    assert checks(image, judge)[0].passed is False, "nothing under a certificate is there: nothing has to be fetched"
    attach(image, instance, 0)
    check = checks(image, judge)[0]
    assert check.passed is None
    assert "could not find out" in check.message
    image.attach(0, image_signature(image.subjects[0].digest), signer)
    assert checks(image, judge, signer)[0].passed, "the key's signature is enough"


@pytest.mark.parametrize("text", ["{}", "not JSON", '{"mediaType": "x"}'])
def test_a_file_that_is_no_trust_root(tmp_path: Path, text: str) -> None:
    path = tmp_path / "root.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        KeylessVerifier(ME, path).open()
    assert caught.value.code == "attest.bad-trust-root"


def token(**claims: Any) -> str:
    now = int(datetime.now(UTC).timestamp())
    value = {"aud": "sigstore", "sub": NAME, "iss": ISSUER, "iat": now - 5, "exp": now + 300, **claims}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, value)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


class Context:
    """The library's signer, with an authority and a log in memory instead of theirs."""

    def __init__(self, instance: Instance, folder: Path, fault: Exception | None = None) -> None:
        self.instance, self.root, self.fault = instance, instance.trusted_root(folder), fault

    @contextmanager
    def signer(self, identity: Any) -> Iterator[Any]:
        from sigstore.models import TransparencyLogEntry, TrustedRoot
        from sigstore.sign import SigningContext
        from sigstore_models.rekor.v1 import TransparencyLogEntry as Raw

        instance = self.instance

        class Authority:
            signing_cert = SimpleNamespace()

        def post(request: Any, _identity: Any) -> Any:
            made = instance.certificate(request.public_key(), datetime.now(UTC), _identity.identity, _identity.issuer)
            return SimpleNamespace(cert=made, chain=[instance.authority])

        Authority.signing_cert.post = post

        class Log:
            def _build_dsse_request(self, envelope: Any, certificate: Any) -> Any:
                return envelope, certificate

            def create_entry(log, request: Any) -> Any:
                if self.fault is not None:
                    raise self.fault
                envelope, certificate = request
                entry = instance.log_entry(certificate, json.loads(envelope.to_json()), datetime.now(UTC))
                return TransparencyLogEntry(Raw.from_json(json.dumps(entry)))

        context = SigningContext(
            fulcio=Authority(),  # type: ignore[arg-type]
            rekor=Log(),  # type: ignore[arg-type]
            trusted_root=TrustedRoot.from_file(str(self.root)),
        )
        with context.signer(identity) as signer:
            yield signer


def test_what_is_signed_verifies(image: Stored, instance: Instance, judge: KeylessVerifier, tmp_path: Path) -> None:
    keyless = open_keyless(Context(instance, tmp_path), token())
    assert keyless.identity == ME
    for subject in image.subjects:
        named, raw = keyless.bundle(image_signature(subject.digest))
        assert named.names(subject.digest)
        assert attach_bundle(image.place, subject.descriptor, named, raw, NOW).added
    assert [check.passed for check in checks(image, judge)] == [True] * 3


def test_a_log_that_fails_signs_nothing(image: Stored, instance: Instance, tmp_path: Path) -> None:
    keyless = open_keyless(Context(instance, tmp_path, OSError("log is down")), token())
    with pytest.raises(UnavailableError) as caught:
        keyless.bundle(image_signature(image.subjects[0].digest))
    assert caught.value.code == "attest.keyless-failed"


@pytest.mark.parametrize("text", ["", "not a token", token(exp=1), token(aud="others")])
def test_a_token_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", text)
    with pytest.raises(InputError) as caught:
        open_keyless(object())
    assert caught.value.code == "attest.no-identity-token"


def test_the_library_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(UnavailableError) as caught:
        require_library()
    assert (caught.value.code, caught.value.hint) == ("attest.missing-extra", "pip install 'imagebuild[keyless]'")


def test_the_double_is_a_real_instance_s(instance: Instance, judge: KeylessVerifier) -> None:
    """Another key of the certificate log alone breaks it: the library looks at every signature."""
    strange = Instance(root=instance.root, log=instance.log)
    strange.authority = instance.authority
    with pytest.raises(ImagebuildError, match="SCT"):
        judge.verify(json.dumps(strange.bundle(b"{}")).encode())
    assert sign(instance.root, b"x")
