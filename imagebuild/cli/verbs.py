"""The table of verbs: name, one line, module.  A verb's module is imported only when it runs, so that start-up costs
what the verb costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """`module` has `configure(parser)` and `run(arguments, session) -> int`."""

    name: str
    summary: str

    @property
    def module(self) -> str:
        return f"imagebuild.cli.verb_{self.name}"


VERBS = (
    Verb("init", "make a workspace, or a target in an existing one"),
    Verb("overlay", "import, pin, edit, refresh, list, show and check guarded overlays"),
    Verb("lock", "resolve a target's base, check every guard, write the lock"),
    Verb("plan", "show layers, files, guard states, requests and bytes beforehand"),
    Verb("build", "make the image and store or push it"),
    Verb("reproduce", "build again elsewhere and compare every byte"),
    Verb("verify", "recompute what an image claims about itself, and verify its signatures"),
    Verb("keygen", "make a pair of keys for signing"),
    Verb("sign", "sign an image's index and every platform's manifest"),
    Verb("attest", "sign a statement about an image"),
    Verb("export", "write the same change as a script or Dockerfile for the pristine image"),
    Verb("smoke", "check that the patched code is what runs, and leave evidence"),
    Verb("gsm8k", "run GSM8K against an engine, compare runs, decide"),
    Verb("ref", "print the line by which docker, podman, enroot, pyxis or a recipe names the image"),
    Verb("waiver", "write, render and check waivers of patches"),
    Verb("report", "write one page for reviewers, or the pull request's text"),
    Verb("release", "bring a target from its lock to a signed, published release"),
    Verb("matrix", "print the CI matrix: target by platform by check, with runner labels"),
    Verb("cache", "show or prune the cache"),
    Verb("schema", "print the JSON Schema of a file that people write"),
    Verb("explain", "explain an error code"),
    Verb("doctor", "tell what this machine and a registry can do"),
    Verb("demo", "run everything once on a realistic base"),
)


def find_verb(name: str) -> Verb | None:
    for verb in VERBS:
        if verb.name == name:
            return verb
    return None
