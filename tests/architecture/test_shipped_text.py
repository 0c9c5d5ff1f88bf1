"""What the repository may not say: paths of one machine, hosts that it has no business with, unwritten words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from package_source import ROOT, tracked_files

URL = re.compile(r"(?:https?|git|ssh|ftp)://(?:[^\s/@\"'<>]*@)?([A-Za-z0-9.-]+)")
HOSTS = {
    "cyclonedx.org",
    "docker.io",
    "api.github.com",
    "github.com",
    "in-toto.io",
    "index.docker.io",
    "json-schema.org",
    "keepachangelog.com",
    "opencontainers.org",
    "openvex.dev",
    "packaging.python.org",
    "peps.python.org",
    "reproducible-builds.org",
    "semver.org",
    "sigstore.dev",
    "slsa.dev",
    "spdx.org",
    "www.apache.org",
    "www.rfc-editor.org",
}
"""Hosts that a shipped text may name: standards, licences and projects.  Where packages come from is the business of
the machine's own configuration, so no package index or mirror is among them."""
RESERVED = re.compile(r"(^|\.)(example|test|invalid|localhost|local|internal)(\.(com|org|net))?$|^[0-9.]+$|^[^.]+$")
"""RFC 2606 and RFC 6761 names, addresses, and single words."""
MACHINE = re.compile(r"(?<![\w.$}-])/(?:home|Users|work)/[a-z]|\.\./shared\b|(?<![\w.])/(?:root|opt)/\.?pyenv\b")
UNWRITTEN = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".cfg", ".txt", ".sh", ""}
TAKEN_OVER = ("overlays/", "manifests/", "tests/golden/", "LICENSE")
"""Holds other people's text (contexts of patches, base manifests), byte for byte."""


def shipped() -> list[Path]:
    out = []
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if path.suffix in SUFFIXES and not name.startswith(TAKEN_OVER) and path != Path(__file__):
            out.append(path)
    assert len(out) > 20
    return out


def findings(text: str, where: str) -> list[str]:
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE.search(line):
            out.append(f"{where}:{number}: a path of one machine: {line.strip()[:80]}")
        if UNWRITTEN.search(line):
            out.append(f"{where}:{number}: unfinished: {line.strip()[:80]}")
    return out


def foreign_hosts(text: str, where: str) -> list[str]:
    return [
        f"{where}: {host}"
        for host in sorted({found.rstrip(".").lower() for found in URL.findall(text)})
        if host not in HOSTS and not RESERVED.search(host)
    ]


def test_shipped_files_name_no_machine_and_leave_nothing_unwritten() -> None:
    faults = []
    for path in shipped():
        faults += findings(path.read_text(encoding="utf-8", errors="replace"), str(path.relative_to(ROOT)))
    assert not faults, "\n".join(faults)


def test_shipped_files_name_known_hosts_only() -> None:
    faults = []
    for path in shipped():
        if path.relative_to(ROOT).parts[0] != "tests":
            faults += foreign_hosts(path.read_text(encoding="utf-8", errors="replace"), str(path.relative_to(ROOT)))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "line", ["see /home/someone/x", "open('/work/x')", "# in ../shared/design", "# TO" + "DO: write"]
)
def test_a_machine_path_is_found(line: str) -> None:
    assert findings(line, "x")


def test_a_foreign_host_is_found() -> None:
    assert foreign_hosts("pip install --index-url https://user@index.somewhere.io/simple", "x")
    assert not foreign_hosts("http://127.0.0.1:5000/v2/ https://registry.example/v2/ http://localhost:1/", "x")
