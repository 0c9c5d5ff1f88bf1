"""A release that runs GSM8K: each platform is asked and judged by itself."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from imagebuild.cli import release_checks


def test_every_platform_has_its_own_runs_and_its_own_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def heard(module: str, words: Sequence[str], session: Any) -> dict[str, Any]:
        calls.append((module, *words))
        verdict = "inferior" if "linux/arm64" in words else "non-inferior"
        return {"target": "t", "verdict": verdict, "reason": "both filters"}

    monkeypatch.setattr(release_checks, "_heard", heard)
    request: Any = SimpleNamespace(name="t", images={"linux/amd64": "a", "linux/arm64": "b"})
    arguments: Any = SimpleNamespace(runner="host", site=None, data="gsm8k")
    told = release_checks.checks_here(request, arguments, SimpleNamespace())["gsm8k"]()  # type: ignore[arg-type]
    assert told == "linux/amd64: non-inferior, both filters; linux/arm64: inferior, both filters"
    assert [(call[0], call[3]) for call in calls] == [
        ("gsm8k_run", "linux/amd64"),
        ("gsm8k_gate", "linux/amd64"),
        ("gsm8k_run", "linux/arm64"),
        ("gsm8k_gate", "linux/arm64"),
    ]
    assert all(call[1:3] == ("t", "--platform") for call in calls)
