"""policy.yaml as a value: whose signatures count, and what a release must show (evidence.md, Policy)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.content.schema import (
    Boolean,
    ByKey,
    Field,
    Integer,
    List,
    Map,
    Object,
    Text,
    build_each,
    json_schema,
    validate,
)
from imagebuild.content.strict_yaml import load_yaml, no_entries
from imagebuild.errors import InputError
from imagebuild.overlay.vocabulary import DATE, DIGEST, DURATION, LINE, LOCAL_PATH, PROSE, name_of

PREDICATES = ("image", "provenance", "sbom", "smoke", "gsm8k", "vex", "release")
VERDICTS = (
    "passed", "failed", "not-run", "infrastructure", "invalid", "non-inferior", "inferior", "inconclusive",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """A public key that is trusted: a `file` beside the policy, or its PEM text.  Signatures outside `valid_from` to
    `valid_until` (both included) do not count; times are the signer's word unless a timestamp proves them."""

    name: str
    role: str
    file: str | None = None
    pem: str | None = None
    valid_from: date | None = None
    valid_until: date | None = None

    def __post_init__(self) -> None:
        if self.valid_from is not None and self.valid_until is not None and self.valid_until < self.valid_from:
            raise InputError(
                "target.policy-dates",
                f"key {self.name}: until lies before from",
                expected=f"not before {self.valid_from}",
                found=str(self.valid_until),
                details={"key": "until"},
            )


@dataclass(frozen=True, slots=True)
class Requirement:
    """One kind of statement that must be there: `predicate` (a word of evidence.md's table or a predicate type's URI),
    signed by `threshold` distinct keys with one of `roles` (empty: any role), with one of `verdicts` (empty: it has
    none), at most `max_age` seconds old (None: any age)."""

    predicate: str
    verdicts: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    threshold: int = 1
    distinct_roles: bool = False
    max_age: int | None = None


@dataclass(frozen=True, slots=True)
class WaiverRule:
    """Whether a waiver must be there; whether one that has expired refuses the release."""

    required: bool = False
    expired: str = "refuse"


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that a policy says.  `revoked` maps digests of images to the reason; `repositories` are globs (empty:
    any), and so are `bases` (over the base's reference with its digest) and `builders` (over a provenance's builder.id);
    `minimum_release` maps a target to the smallest release counter accepted; `not_proven` and `unsigned_evidence` (results of
    checks that nobody signed, which a signed release names) are refuse or allow."""

    keys: Mapping[str, PolicyKey]
    require: tuple[Requirement, ...] = ()
    repositories: tuple[str, ...] = ()
    revoked: Mapping[Digest, str] = field(default_factory=no_entries)
    minimum_release: Mapping[str, int] = field(default_factory=no_entries)
    waiver: WaiverRule = field(default_factory=WaiverRule)
    not_proven: str = "refuse"
    bases: tuple[str, ...] = ()
    builders: tuple[str, ...] = ()
    unsigned_evidence: str = "refuse"

    def __post_init__(self) -> None:
        roles = {key.role for key in self.keys.values()}
        for number, need in enumerate(self.require):
            place = f"require[{number}]"
            for role in need.roles:
                if role not in roles:
                    raise InputError(
                        "target.policy-role",
                        f"no key has the role {role}",
                        expected=", ".join(sorted(roles)) or "no key is listed",
                        found=role,
                        details={"key": f"{place}.roles", "with": ["keys"]},
                    )
            able = [key for key in self.keys.values() if not need.roles or key.role in need.roles]
            count = len({key.role for key in able}) if need.distinct_roles else len(able)
            if count < need.threshold:
                raise InputError(
                    "target.policy-threshold",
                    f"{need.predicate} asks for {need.threshold} signatures, and {count} can be given",
                    expected=f"at most {count}",
                    found=str(need.threshold),
                    details={"key": f"{place}.threshold", "with": ["keys"]},
                )


_ROLE = Text("a role", pattern=r"[a-z][a-z0-9-]*")


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    for word in ("from", "until"):
        if word in values:
            values[f"valid_{word}"] = values.pop(word)
    return values


_KEY_DATES = {
    "role": Field(_ROLE, "what the holder vouches for: builder, tester, approver, …", required=True),
    "from": Field(DATE, "first day"),
    "until": Field(DATE, "last day"),
}
_KEY = ByKey(
    {
        "file": Object(
            {"file": Field(LOCAL_PATH, "PEM file, below the policy's folder", True), **_KEY_DATES}, "a key", _renamed
        ),
        "pem": Object(
            {
                "pem": Field(
                    Text(
                        "a public key in PEM",
                        lines=True,
                        pattern=r"-----BEGIN PUBLIC KEY-----\n[A-Za-z0-9+/=\n]+-----END PUBLIC KEY-----\n?",
                        form="-----BEGIN PUBLIC KEY-----…",
                    ),
                    "the key itself",
                    True,
                ),
                **_KEY_DATES,
            },
            "a key",
            _renamed,
        ),
    },
    "a key",
)


def _policy(values: dict[str, Any]) -> Policy:
    values.pop("schema")
    keys = build_each(values["keys"], lambda name, key: PolicyKey(name=name, **key), "keys")
    return Policy(**{**values, "keys": keys})


POLICY = Object(
    {
        "schema": Field(Integer("the format's number", only=1), "number of this format", required=True),
        "keys": Field(Map(name_of("a key"), _KEY), "name: public key", required=True),
        "require": Field(
            List(
                Object(
                    {
                        "predicate": Field(
                            Text(
                                "a predicate",
                                pattern=rf"{'|'.join(PREDICATES)}|https://[^\s\u0000-\u001f]+",
                                form=" | ".join(PREDICATES) + " | a predicate type's URI",
                            ),
                            "which statement",
                            required=True,
                        ),
                        "verdicts": Field(
                            List(Text("a verdict", choices=VERDICTS), minimum=1, unique=True), "verdicts that are good"
                        ),
                        "roles": Field(
                            List(_ROLE, minimum=1, unique=True), "who may have signed it; anyone trusted if left out"
                        ),
                        "threshold": Field(
                            Integer("a number of signatures", minimum=1, maximum=100),
                            "distinct keys that must have signed",
                        ),
                        "distinct_roles": Field(Boolean(), "whether they must be of distinct roles"),
                        "max_age": Field(DURATION, "how old it may be"),
                    },
                    "a requirement",
                    lambda values: Requirement(**values),
                )
            ),
            "what a release must show",
        ),
        "repositories": Field(List(LINE, unique=True), "globs over HOST/PATH from which an image may come"),
        "bases": Field(
            List(LINE, unique=True), "globs over REFERENCE@DIGEST of the base that a signed statement names"
        ),
        "builders": Field(List(LINE, unique=True), "globs over builder.id of a signed provenance"),
        "revoked": Field(Map(DIGEST, PROSE), "digest of an image: why"),
        "minimum_release": Field(
            Map(name_of("a target"), Integer("a counter", minimum=1)), "target: smallest release counter"
        ),
        "waiver": Field(
            Object(
                {
                    "required": Field(Boolean(), "whether a release needs one"),
                    "expired": Field(Text("refuse or warn", choices=("refuse", "warn")), "what an expired one does"),
                },
                "a mapping",
                lambda values: WaiverRule(**values),
            ),
            "waivers",
        ),
        "not_proven": Field(
            Text("refuse or allow", choices=("refuse", "allow")), "paths that the layers read do not settle"
        ),
        "unsigned_evidence": Field(
            Text("refuse or allow", choices=("refuse", "allow")),
            "results of smoke and gsm8k that nobody signed, where a signed release names them",
        ),
    },
    "a policy",
    _policy,
)


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of policy.yaml."""
    return json_schema(POLICY, name="policy.json", title="imagebuild policy")


def load_policy(path: Path) -> Policy:
    """Raises InputError, or SeveralErrors of them, with file and line."""
    policy: Policy = validate(load_yaml(path), POLICY)
    return policy
