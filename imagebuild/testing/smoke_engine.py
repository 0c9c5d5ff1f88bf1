"""An engine small enough for a test, that really serves: with a switch, a proof, and a base whose Python runs.

    base = smoke_base(folder, debian_root())
    space = smoke_workspace(root, base)      # then: imagebuild lock tuned; imagebuild build tuned

The engine answers OpenAI-style completions out of a hash of the prompt, so that its tokens and logprobs are the same on
every machine; with the switch on, its logprobs are a little off and its log says so once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from imagebuild.oci.platform import Platform
from imagebuild.overlay.patch_make import make_diff
from imagebuild.testing.base_layers import FilesLayer
from imagebuild.testing.real_root import TreeLayer, python_of
from imagebuild.testing.small_engine import SmallWorkspace, distribution
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base

SWITCH = "ENGINE_TUNED"
PROOF = r"decode step runs tuned"
CREATED = 1_700_000_000

ENVS = b'''"""Switches of the engine."""

import os


def number(name, default):
    return int(os.environ.get(name, default))


VARIABLES = {
    "ENGINE_PORT": lambda: number("ENGINE_PORT", 8000),
}


def read(name):
    return VARIABLES[name]()
'''
ENVS_AFTER = ENVS.replace(
    b"}\n\n\ndef read", b'    "ENGINE_TUNED": lambda: number("ENGINE_TUNED", 0),\n}\n\n\ndef read'
)
DECODE = b'''"""One greedy step."""

import hashlib


def step(tokens, size):
    digest = hashlib.sha256(",".join(map(str, tokens)).encode()).digest()
    token = int.from_bytes(digest[:4], "big") % size
    logprob = -(int.from_bytes(digest[4:8], "big") % 1000) / 1000.0
    return token, logprob
'''
DECODE_AFTER = DECODE.replace(
    b"    return token, logprob\n",
    b'    if envs.read("ENGINE_TUNED"):\n        tuned.once()\n        logprob -= 0.001953125\n    return token, logprob\n',
).replace(b"import hashlib\n", b"import hashlib\n\nfrom engine import envs, tuned\n")
TUNED = b'''"""Added by the overlay."""

SAID = []


def once():
    if not SAID:
        SAID.append(True)
        print("decode step runs tuned", flush=True)
'''
SERVER = b'''"""The engine's server: /health, /v1/models, /v1/completions, /metrics."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from engine import decode, envs

COUNT = {"steps": 0}


class Handler(BaseHTTPRequestHandler):
    def answer(self, value, status=200):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            self.answer(b"")
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": "tiny"}]})
        elif self.path == "/metrics":
            self.answer(b'engine_steps_total{model="tiny"} %d\\n' % COUNT["steps"])
        else:
            self.answer({}, 404)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens, new, logprobs = list(asked["prompt"]), [], []
        for _ in range(asked["max_tokens"]):
            token, logprob = decode.step(tokens, SIZE)
            COUNT["steps"] += 1
            tokens.append(token)
            new.append(token)
            logprobs.append(logprob)
        told = {"tokens": ["token_id:%d" % token for token in new], "token_logprobs": logprobs}
        text = " ".join("w%d" % token for token in new)
        self.answer({"choices": [{"text": text, "finish_reason": "length", "logprobs": told}]})

    def log_message(self, *words):
        pass


model, port = sys.argv[1], int(sys.argv[2])
SIZE = json.load(open(model + "/config.json"))["vocab_size"]
print("serving, workers on port", envs.read("ENGINE_PORT"), flush=True)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''
PACKAGE = {
    "engine/__init__.py": b'__version__ = "1.0"\n',
    "engine/decode.py": DECODE,
    "engine/envs.py": ENVS,
    "engine/server.py": SERVER,
}
CHANGES = """\
  - patch: patches/0001-tuned.patch
  - file: files/tuned.py
    to: engine/tuned.py
"""
OWN_CHECK = b"""import json
import sys

print(json.dumps({"kind": "overlay-check", "verdict": "passed", "reason": "sums agree", "ranks": sys.argv[1:]}))
"""


def smoke_base(
    folder: Path, root: Path, *, platform: str = "linux/amd64", more: dict[str, bytes] | None = None
) -> MadeBase:
    """The engine on a root (folder or tar) whose Python runs, as a layout in `folder`; `more` are other files by path."""
    site = f"usr/local/lib/python{python_of(root)}/dist-packages"
    files = {f"{site}/{path}": (data, 0o644) for path, data in distribution("engine", "1.0", PACKAGE).items()}
    files |= {f"{site}/engine/__pycache__/README": (b"compiled modules go here\n", 0o644)}
    files |= {path: (data, 0o644) for path, data in (more or {}).items()}
    layers = (TreeLayer(root), FilesLayer(files, created_by="RUN pip install engine"))
    spec = BaseSpec("smoke", (Platform.parse(platform),), layers, CREATED, index=False, working_dir="/srv")
    return make_base(spec, folder)


def smoke_workspace(root: Path, base_reference: str, **keys: Any) -> SmallWorkspace:
    """A workspace with the target `tuned` and its overlay `tune`, not locked yet; `keys` replace keys of target.yaml."""
    space = SmallWorkspace(root, cast(Any, None), base_reference, ("linux/amd64",))
    patch = make_diff("engine/decode.py", DECODE, DECODE_AFTER) + make_diff("engine/envs.py", ENVS, ENVS_AFTER)
    folder = space.write_overlay(
        "tune",
        CHANGES,
        {"patches/0001-tuned.patch": patch, "files/tuned.py": TUNED, "checks/sums.py": OWN_CHECK},
    )
    yaml = folder / "overlay.yaml"
    switch = f'switch: {{env: {SWITCH}, default: "0", "on": "1"}}\nproof: {{log: "{PROOF}"}}\nnumerics: reordered\n'
    yaml.write_text(yaml.read_text().replace("changes:\n", switch + "changes:\n"))
    smoke = {
        "registry": "engine.envs:VARIABLES",
        "overlay_args": {"tune/sums.py": ["1", "2"]},
        "engine": {
            "config": {"vocab_size": 256},
            "command": ["{python}", "-m", "engine.server", "{model}", "{port}"],
            "tokens": 4,
            "ready_deadline": "60s",
        },
    }
    steps = ["files", "python", "switch", "engine", "parity", "overlay"]
    keys.setdefault("checks", {"smoke": {"steps": steps, **smoke}})
    space.write_target(**keys)
    return space
