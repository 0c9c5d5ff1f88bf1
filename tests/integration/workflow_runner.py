"""Runs the scripts of a workflow as a CI runner does: environment files, one shell a step, expressions under `env` only."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


def load_workflow(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value


@dataclass
class Runner:
    """One machine.  `values` are what expressions stand for; an unknown one fails the test."""

    workflow: Mapping[str, Any]
    checkout: Path
    temp: Path
    values: dict[str, str]
    environment: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    ran: list[tuple[str, str, int, str]] = field(default_factory=list)

    def evaluated(self, env: Mapping[str, Any] | None) -> dict[str, str]:
        return {name: EXPRESSION.sub(self._value, str(value)) for name, value in (env or {}).items()}

    def _value(self, found: re.Match[str]) -> str:
        assert found[1] in self.values, f"the test does not know {found[1]}"
        return self.values[found[1]]

    def job(self, name: str, *, skip: tuple[str, ...] = ()) -> None:
        """Every script of a job but those of the steps in `skip`; what failed is in `ran`."""
        job = self.workflow["jobs"][name]
        outer = {**self.environment, **self.evaluated(self.workflow.get("env")), **self.evaluated(job.get("env"))}
        files = {key: self.temp / key.lower() for key in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH")}
        files["GITHUB_STEP_SUMMARY"] = self.temp / "summary.md"
        for path in files.values():
            path.touch()
        for step in job["steps"]:
            if "run" not in step or step["name"] in skip:
                continue
            inner = {**outer, **self.evaluated(step.get("env")), **{key: str(path) for key, path in files.items()}}
            inner["RUNNER_TEMP"] = str(self.temp)
            done = subprocess.run(
                # what GitHub runs for `shell: bash`
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.checkout, env=inner, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.ran.append((name, step["name"], done.returncode, done.stdout + done.stderr))
            for line in files["GITHUB_OUTPUT"].read_text().splitlines():
                key, _, value = line.partition("=")
                self.outputs[key] = value
            for line in files["GITHUB_ENV"].read_text().splitlines():
                key, _, value = line.partition("=")
                outer[key] = value
            for line in files["GITHUB_PATH"].read_text().splitlines():
                outer["PATH"] = f"{line}:{outer['PATH']}"
                self.environment["PATH"] = outer["PATH"]
            files["GITHUB_PATH"].write_text("")

    @property
    def failures(self) -> list[tuple[str, str, int, str]]:
        return [one for one in self.ran if one[2] != 0]
