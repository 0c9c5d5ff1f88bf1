"""sites.yaml and policy.yaml as values."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors
from imagebuild.target.policy import Policy, PolicyKey, Requirement, WaiverRule, load_policy
from imagebuild.target.site import Site, choose_site, load_sites

A = Digest("a" * 64)


def codes(error: ImagebuildError) -> list[tuple[str, int, str]]:
    every = error.errors if isinstance(error, SeveralErrors) else (error,)
    return [(one.code, one.details["line"], one.details["key"]) for one in every]


def test_sites_become_values(tmp_path: Path) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(
        "schema: 1\nsites:\n  b300:\n    runner: slurm\n    partition: gpu\n    squash_folder: /shared/sq\n"
        "    mounts: [/models:/models:ro]\n    models: {m/n: /models/n}\n    time_limit: 3h\n  here: {runner: host}\n"
    )
    sites = load_sites(path)
    assert sites["b300"] == Site(
        "b300",
        "slurm",
        partition="gpu",
        squash_folder="/shared/sq",
        mounts=("/models:/models:ro",),
        models={"m/n": "/models/n"},
        time_limit=10_800,
    )
    assert choose_site(sites, "here").runner == "host"
    with pytest.raises(InputError) as caught:
        choose_site(sites, "b30")
    assert (caught.value.code, caught.value.hint) == ("target.unknown-site", "did you mean b300?")


def test_every_site_that_lacks_its_squash_folder_is_told(tmp_path: Path) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text("schema: 1\nsites:\n  a: {runner: slurm}\n  b: {runner: docker}\n  c:\n    runner: slurm\n")
    with pytest.raises(SeveralErrors) as caught:
        load_sites(path)
    assert codes(caught.value) == [
        ("target.site-squash", 3, "sites.a.runner"),
        ("target.site-squash", 6, "sites.c.runner"),
    ]
    path.write_text("schema: 1\nsites:\n  a: {runner: slurm, container: oci}\n")
    assert load_sites(path)["a"].container == "oci"


POLICY = f"""\
schema: 1
keys:
  ci: {{file: keys/ci.pub, role: builder, from: 2026-01-01, until: 2027-01-01}}
  lab: {{file: keys/lab.pub, role: tester}}
require:
  - {{predicate: provenance, roles: [builder]}}
  - {{predicate: gsm8k, verdicts: [non-inferior], max_age: 30d, threshold: 2, distinct_roles: true}}
repositories: [docker.io/example/*]
revoked: {{{A}: leaked}}
minimum_release: {{b300-vllm: 3}}
waiver: {{required: true}}
"""


def policy(folder: Path, text: str) -> Policy:
    (folder / "policy.yaml").write_text(text)
    return load_policy(folder / "policy.yaml")


def test_a_policy_becomes_a_value(tmp_path: Path) -> None:
    assert policy(tmp_path, POLICY) == Policy(
        {
            "ci": PolicyKey("ci", "builder", "keys/ci.pub", None, date(2026, 1, 1), date(2027, 1, 1)),
            "lab": PolicyKey("lab", "tester", "keys/lab.pub"),
        },
        (
            Requirement("provenance", roles=("builder",)),
            Requirement("gsm8k", ("non-inferior",), (), 2, True, 30 * 86400),
        ),
        ("docker.io/example/*",),
        {A: "leaked"},
        {"b300-vllm": 3},
        WaiverRule(True, "refuse"),
        "refuse",
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("until: 2027", "until: 2025", ("target.policy-dates", 3, "keys.ci.until")),
        ("[builder]", "[approver]", ("target.policy-role", 6, "require[0].roles")),
        ("threshold: 2", "threshold: 3", ("target.policy-threshold", 7, "require[1].threshold")),
        ("role: tester", "role: builder", ("target.policy-threshold", 7, "require[1].threshold")),
        ("keys/ci.pub", "/etc/ci.pub", ("schema.bad-value", 3, "keys.ci.file")),
        ("non-inferior", "non-inferor", ("schema.bad-value", 7, "require[1].verdicts[0]")),
    ],
)
def test_a_policy_that_could_never_be_met_is_refused(
    tmp_path: Path, old: str, new: str, expected: tuple[str, int, str]
) -> None:
    with pytest.raises(ImagebuildError) as caught:
        policy(tmp_path, POLICY.replace(old, new))
    assert codes(caught.value) == [expected]
