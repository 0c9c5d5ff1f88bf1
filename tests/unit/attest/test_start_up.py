"""What costs time to load is loaded with the first key, not with the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = (
    "evidence", "policy_checks", "storage", "signers", "keys", "dsse", "statement", "bundle", "trust", "release_file",
    "predicates.sbom", "predicates.provenance",
)  # fmt: skip


@pytest.mark.parametrize("heavy", ["cryptography", "nacl", "urllib3", "cyclonedx"])
def test_importing_the_package_loads_no_big_library(heavy: str) -> None:
    script = "; ".join(f"import imagebuild.attest.{name}" for name in MODULES)
    script += f"; import sys; print('{heavy}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
