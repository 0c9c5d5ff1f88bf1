"""A small benchmark repository of our own making, laid out as such repositories are, and changes to it as git prints them."""

from __future__ import annotations

import hashlib
from difflib import unified_diff
from pathlib import Path

KEY = "engine-fp4-b300-vllm"
CHANGELOG = """\
- config-keys:
    - other-fp8-h200-vllm
  description:
    - "Raise the version"
  pr-link: https://github.com/bench/bench/pull/1

- config-keys:
    - engine-*-vllm
  description:
    - "Add the configuration"
  pr-link: https://github.com/bench/bench/pull/2
"""
ENTRY = f"""
- config-keys:
    - {KEY}
  description:
    - "Run the tuned image"
  pr-link: https://github.com/bench/bench/pull/77
"""


def write_repository(root: Path, image: str, container: str | None = None, variable: str = "ENGINE_TUNED") -> Path:
    """docs/waiver, configs/*-master.yaml, a recipe with `model.container`, a script, perf-changelog.yaml."""
    files = {
        "configs/nvidia-master.yaml": f"""\
other-fp8-h200-vllm:
  image: vllm/vllm-openai:v1
{KEY}:
  image: {image}
  runner: b300
  scenarios:
    - search-space:
        - {{tp: 8, conc-list: [32], additional-settings: ["CONFIG_FILE=recipes/engine/tep.yaml"]}}
""",
        "benchmarks/recipes/engine/tep.yaml": f"""\
defaults: &defaults
  environment: {{ENGINE_PORT: "8001", UNRELATED_NAME: "1"}}
name: tep
model: {{path: engine, container: "{container or image}"}}
identity: {{container: {{image: "{container or image}"}}}}
backend:
  <<: *defaults
  decode_environment: {{{variable}: "1"}}
""",
        "benchmarks/engine_b300.sh": "export ENGINE_TUNED=0\nengine serve\n",
        "benchmarks/broken.yaml": "a: [1\n",
        "perf-changelog.yaml": CHANGELOG,
        "docs/waiver/README.md": "# Waivers\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()[:10]


def git_diff(path: str, before: str | None, after: str | None) -> str:
    """One file of a change, as git prints it."""
    old, new = (before or "").encode(), (after or "").encode()
    head = f"diff --git a/{path} b/{path}\n"
    if before is None:
        head += "new file mode 100644\n"
    if after is None:
        head += "deleted file mode 100644\n"
    head += f"index {'0' * 10 if before is None else blob(old)}..{'0' * 10 if after is None else blob(new)} 100644\n"
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}")
    lines = unified_diff((before or "").splitlines(True), (after or "").splitlines(True), *names)
    return head + "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)
