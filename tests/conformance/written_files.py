"""One whole good document of each kind that people write, and ways to spoil it: (path, value) with REMOVE for no value.

`SPOILT` is refused by our reader and by the JSON Schema alike, `VARIED` is taken by both, `BEYOND` is refused by our
reader for a reason that JSON Schema does not express.
"""

from __future__ import annotations

import copy
from typing import Any

REMOVE = object()
A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64
KEY = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZI\n-----END PUBLIC KEY-----\n"

GOOD: dict[str, Any] = {
    "target": {
        "schema": 1,
        "name": "b300-vllm",
        "description": "for B300",
        "base": f"docker.io/vllm/vllm-openai:kimi-k31-mc@{A}",
        "platforms": ["linux/amd64"],
        "sku": "b300",
        "overlays": ["kimi-k3-tep-shared-tp"],
        "roots": {"vllm": {"python": "vllm"}, "opt": {"path": "/opt/x"}, "site": {"purelib": True}},
        "derived": {"record": "update"},
        "content": "commit",
        "env": {"A_B": ""},
        "requires": {"env": {"HSA_NO_SCRATCH_RECLAIM": "1"}, "host": {"mec_firmware": ">=38"}},
        "identity": {"vllm": "0.33.0", "ai-dynamo": "1.6.1"},
        "expect_applied": ["kimi-k3-tep-shared-tp"],
        "untouched": ["vllm"],
        "publish": {
            "repository": "docker.io/example/engine",
            "tag": "{base.tag}-{base.short}-x",
            "arch_tag": "{base.tag}-{content.short}-{arch}",
        },
        "attestations": {"repository": "ghcr.io/example/attestations"},
        "serve": {
            "engine": "vllm",
            "args": ["--tensor-parallel-size", "8", ""],
            "env": {"X": "1"},
            "model": {"id": "m/n", "revision": "abc", "path": "/models/n"},
            "tool_parser": "kimi_k3",
            "reasoning_parser": "kimi_k3",
            "speculative": {"method": "dspark", "draft": "d", "revision": "6a2ef20a", "tokens": 4, "acceptance": "real"},
            "ready_deadline": "30m",
        },
        "checks": {
            "smoke": {"steps": ["files", "python"], "deadline": "10m", "prompts": "checks/prompts.jsonl"},
            "gsm8k": {"threshold": 0.9, "margin": 1.0, "arms": ["base", "on"], "concurrency": [70], "max_null": 3, "max_truncated": 40},
        },
        "waiver": 4878,
    },
    "overlay": {
        "schema": 1,
        "name": "tep",
        "description": "one line\n\nthen why",
        "origin": {"kind": "backport", "url": "https://github.com/x/y/pull/1", "commit": "064565cf1e"},
        "author": "A B <a@b.org>",
        "forwarded": "no",
        "upstream_status": "Pending",
        "applied_upstream": "v1.2",
        "last_update": "2026-11-30",
        "numerics": "reordered",
        "remove_when": "merged",
        "license": "Apache-2.0",
        "switch": {"env": "VLLM_X", "default": "0", "on": "1"},
        "proof": {"log": "TEP .* on"},
        "fixes": ["CVE-2026-1234", "GHSA-aaaa-bbbb-cccc"],
        "changes": [
            {"patch": "patches/0001-a.patch"},
            {"file": "files/t.py", "to": "vllm/models/t.py"},
            {"edit": {"path": "vllm/envs.py", "find": "a\n\tb", "replace": ""}},
            {"delete": {"path": "vllm/old.py"}},
            {"delete": {"glob": "aiter/jit/module_*.so", "count": 3}},
            {"symlink": {"path": "vllm/l", "to": "../x"}},
            {"wheel": {"name": "ai-dynamo", "version": "1.6.1", "sha256": {"linux/arm64": A}, "url": "https://x.org/w.whl"}},
            {"blob": {"path": "vllm/b.so", "url": "https://x.org/b.so", "sha256": A, "size": 5, "elf": "x86_64"}},
            {"blob": {"path": "vllm/c.co", "file": "files/c.co", "sha256": A, "gfx": "gfx950"}},
            {
                "stage": {
                    "dockerfile": "Dockerfiles/a.Dockerfile",
                    "args": {"GPU_ARCHS": "gfx950"},
                    "network": "none",
                    "out": {"/out/m.so": "aiter/jit/m.so"},
                    "reproducible": True,
                    "artifact": f"ghcr.io/x/y@{A}",
                }
            },
            {"env": {"NAME": "value"}},
        ],
        "guards": {
            "vllm/envs.py": {"preimage": A, "preimage_git": "064565cf1e", "postimage": B, "postimage_git": "7f01d49cda", "mode": "0644"},
            "vllm/models/t.py": {"preimage": "absent", "postimage": A},
            "vllm/old.py": {"preimage": [A, B], "postimage": "absent"},
            "vllm/p.py": {"linux/arm64": {"preimage": A, "postimage": B}, "linux/amd64": {"preimage": B, "postimage": A}},
        },
    },
    "waiver": {
        "schema": 1,
        "number": 4878,
        "title": "TEP",
        "targets": ["b300-vllm"],
        "configs": ["kimik3.1-fp4-b300-vllm-agentic-dspark"],
        "patched": "auto",
        "why_unmodified_cannot_run": {"text": "it crashes", "evidence": ["https://x.org/log", "Traceback\n  boom"]},
        "upstream": [{"url": "https://github.com/vllm-project/vllm/pull/1", "state": "open"}],
        "removal_plan": {"condition": "merged", "delete": ["docs/waiver/4878.md"], "expires": "2027-03-01"},
        "notes": {"vllm/envs.py": "the switch"},
        "zh": {"title": "标题", "why": "为何", "removal_plan": "计划"},
    },
    "policy": {
        "schema": 1,
        "keys": {
            "ci": {"file": "keys/ci.pub", "role": "builder", "from": "2026-01-01", "until": "2027-01-01"},
            "tester": {"pem": KEY, "role": "tester"},
        },
        "require": [
            {"predicate": "provenance", "roles": ["builder"], "threshold": 1},
            {"predicate": "gsm8k", "verdicts": ["non-inferior"], "max_age": "30d", "threshold": 2, "distinct_roles": True},
            {"predicate": "https://x.org/custom/v1"},
        ],
        "repositories": ["docker.io/example/*"],
        "bases": ["docker.io/example/engine*@sha256:*"],
        "builders": ["https://example.com/builder/v1"],
        "revoked": {A: "leaked a token"},
        "minimum_release": {"b300-vllm": 3},
        "waiver": {"required": True, "expired": "warn"},
        "not_proven": "refuse",
        "unsigned_evidence": "allow",
    },
    "site": {
        "schema": 1,
        "sites": {
            "b300": {
                "runner": "slurm",
                "partition": "gpu",
                "account": "bench",
                "qos": "normal",
                "container": "pyxis",
                "squash_folder": "/shared/squash",
                "scratch": "/local",
                "mounts": ["/models:/models:ro", "/data:/d"],
                "models": {"m/n": "/models/n"},
                "env": {"X": "1"},
                "labels": ["b300"],
                "skus": ["b300", "gb300"],
                "gpus": 8,
                "time_limit": "2h",
            },
            "laptop": {"runner": "docker"},
        },
    },
    "workspace": {
        "schema": 1,
        "manifests": "m",
        "overlays": "o/p",
        "waivers": "docs/waiver",
        "recipes": "benchmarks",
        "masters": [".github/configs/nvidia-master.yaml"],
        "changelog": "perf-changelog.yaml",
    },
}  # fmt: skip

VARIED: dict[str, list[tuple[str, Any]]] = {
    "target": [
        ("base", f"oci:bases/vllm@{A}"), ("base", f"oci-archive:b.tar@{A}"), ("platforms", ["linux/amd64", "linux/arm64"]), ("overlays", []),
        ("sku", REMOVE), ("checks.gsm8k.threshold", 1), ("checks.gsm8k.threshold", 0), ("env", {}), ("serve.args", ["a\nb"]), ("waiver", REMOVE),
        ("requires.host.mec_firmware", "==38"), ("roots.vllm.python", "a.b_c"), ("publish.arch_tag", REMOVE), ("content", "cache"),
    ],
    "overlay": [
        ("forwarded", "not-needed"), ("forwarded", "https://x.org/1"), ("proof", {"counter": "vllm:tep"}), ("guards", {}), ("guards", REMOVE),
        ("changes.0.patch", "a b/ü.patch"), ("guards.vllm/envs.py.preimage", ["absent", A]), ("guards.vllm/envs.py.mode", "755"),
        ("changes.9.stage.args", REMOVE), ("changes.6.wheel.url", REMOVE), ("switch.default", ""), ("license", "Apache-2.0 OR (MIT AND 0BSD)"),
        ("changes.1.to", "vllm/..x/.whx"),
    ],
    "waiver": [("upstream", []), ("zh", REMOVE), ("patched", REMOVE), ("removal_plan.expires", REMOVE), ("upstream.0.state", REMOVE)],
    "policy": [("require", []), ("revoked", {}), ("keys.ci.until", REMOVE), ("waiver", {})],
    "site": [("sites.b300.container", "oci"), ("sites.laptop.runner", "podman"), ("sites.b300.mounts", [])],
    "workspace": [("masters", "one.yaml"), ("schema", REMOVE), ("waivers", REMOVE), ("masters", [])],
}  # fmt: skip

SPOILT: dict[str, list[tuple[str, Any]]] = {
    "target": [
        ("schema", 2), ("schema", "1"), ("schema", REMOVE), ("name", REMOVE), ("name", "B300"), ("name", "a/b"), ("name", "-a"), ("name", "a."),
        ("name", "x" * 65), ("name", 5), ("name", None), ("base", "docker.io/vllm/vllm-openai:tag"), ("base", "oci:dir"), ("base", "x@sha256:12"),
        ("platforms", []), ("platforms", ["linux/amd65"]), ("platforms", ["linux/amd64", "linux/amd64"]), ("platforms", "linux/amd64"), ("platforms", REMOVE),
        ("sku", "b301"), ("overlays", ["a", "a"]), ("overlays", [3]), ("overlays", {}), ("roots", {"vllm": {}}), ("roots", {"vllm": {"python": "1x"}}),
        ("roots", {"vllm": {"python": "x", "path": "/y"}}), ("roots", {"vllm": {"purelib": False}}), ("roots", {"vllm": {"path": "rel"}}),
        ("roots", {"vllm": {"path": "/a/../b"}}), ("roots", {"a b": {"python": "x"}}), ("derived.record", "yes"), ("derived.rekord", "keep"),
        ("content", "git"), ("env.A B", "1"), ("env.X", 1), ("env.X", True), ("env.X", None), ("env.X", "a\nb"), ("requires.host.x", "38"),
        ("requires.hosts", {}), ("identity.vllm", 0.33), ("identity.a b", "1"), ("publish.tag", REMOVE), ("publish.tag", "{base.tga}"),
        ("publish.tag", "a b"), ("publish.tag", ""), ("publish.repository", "a@b"), ("serve.engine", "trt"), ("serve.args", "--x"), ("serve.args", [8]),
        ("serve.ready_deadline", "30"), ("serve.ready_deadline", 30), ("serve.speculative.tokens", 0), ("serve.speculative.tokens", 4.5),
        ("serve.speculative.acceptance", "golden"), ("serve.model.id", REMOVE), ("checks.gsm8k.threshold", 1.5), ("checks.gsm8k.threshold", "0.9"),
        ("checks.gsm8k.arms", ["base", "base"]), ("checks.gsm8k.concurrency", []), ("checks.gsm8k.concurrency", [0]), ("checks.smoke.steps", ["x"]),
        ("checks.smoke.prompts", "/etc/passwd"), ("checks.smoke.prompts", "../x"), ("waiver", 0), ("waiver", -1), ("waiver", 1.5), ("waiver", True),
        ("wavier", 3), ("description", "a\x00b"), ("description", ""),
    ],
    "overlay": [
        ("name", "A"), ("description", REMOVE), ("changes", []), ("changes", REMOVE), ("origin.kind", "copied"), ("origin.url", "ftp://x.org"),
        ("origin.url", "https://user:pw@x.org/y"), ("origin.commit", "xyz1"), ("origin.commit", 1234567), ("author", "a\nb"), ("forwarded", False),
        ("forwarded", "maybe"), ("upstream_status", "pending"), ("last_update", "30.11.2026"), ("numerics", "exact"), ("license", "a;b"),
        ("switch.on", REMOVE), ("switch.env", "A-B"), ("switch.default", 0), ("proof", {}), ("proof", {"log": "a", "counter": "b"}),
        ("proof", {"grep": "a"}), ("fixes", ["cve-1"]), ("fixes", ["CVE-1-2", "CVE-1-2"]), ("changes.0.patch", "/abs"), ("changes.0.patch", "../up"),
        ("changes.0.patch", "a//b"), ("changes.0.patch", "a/./b"), ("changes.0.patch", "a/"), ("changes.0.patch", ""), ("changes.0.to", "vllm/x"),
        ("changes.1.to", REMOVE), ("changes.1.to", "vllm"), ("changes.1.to", "/vllm/x"), ("changes.1.to", "vllm/../x"), ("changes.1.to", "vllm/.wh.x"),
        ("changes.1.to", "../x/y"), ("changes.1.to", "vllm//x"), ("changes.1.to", "vllm/x/"), ("changes.1.to", "vllm/a\nb"),
        ("changes.1.edit", {"path": "a/b", "find": "x", "replace": "y"}), ("changes.2.edit.find", ""), ("changes.2.edit.find", REMOVE),
        ("changes.2.edit.path", "x"), ("changes.3.delete", {}), ("changes.3.delete", {"path": "a/b", "glob": "a/*"}), ("changes.4.delete.count", REMOVE),
        ("changes.4.delete.count", 0), ("changes.4.delete.glob", "/a/*"), ("changes.5.symlink.to", ""), ("changes.6.wheel.version", 1.6),
        ("changes.6.wheel.version", REMOVE), ("changes.6.wheel.sha256", {}), ("changes.6.wheel.sha256", A), ("changes.6.wheel.sha256", {"arm64": A}),
        ("changes.6.wheel.sha256", {"linux/arm64": "a" * 64}), ("changes.6.wheel.name", "-x"), ("changes.7.blob.size", REMOVE),
        ("changes.7.blob.size", 0), ("changes.7.blob.elf", "arm64"), ("changes.7.blob.file", "x"), ("changes.7.blob.url", REMOVE),
        ("changes.8.blob.gfx", "sm_90"), ("changes.9.stage.out", {}), ("changes.9.stage.out", {"rel": "a/b"}), ("changes.9.stage.network", "host"),
        ("changes.9.stage.artifact", "ghcr.io/x/y:tag"), ("changes.9.stage.args", {"A": 1}), ("changes.10.env", {"A=B": "1"}), ("changes.0", "x.patch"),
        ("changes.0", {}), ("changes.0", {"pach": "x"}), ("guards", {"vllm": {"preimage": A, "postimage": B}}),
        ("guards.vllm/envs.py.preimage", "none"), ("guards.vllm/envs.py.preimage", []), ("guards.vllm/envs.py.preimage", [A, A]),
        ("guards.vllm/envs.py.preimage", REMOVE), ("guards.vllm/envs.py.postimage", REMOVE), ("guards.vllm/envs.py.postimage", "sha512:aa"),
        ("guards.vllm/envs.py.mode", 420), ("guards.vllm/envs.py.mode", "rwx"), ("guards.vllm/envs.py.preimages", A),
        ("guards.vllm/p.py", {"linux/riscv64": {"preimage": A, "postimage": B}}), ("guards.vllm/p.py", {}), ("guards.vllm/p.py", A),
        ("guards.vllm/envs.py.preimage_git", 1234567890), ("guards.vllm/envs.py.preimage_git", "ABCDEF12"),
    ],
    "waiver": [
        ("number", 0), ("number", "4878"), ("number", REMOVE), ("targets", []), ("targets", ["A"]), ("title", ""), ("patched", "manual"),
        ("patched", ["a"]), ("why_unmodified_cannot_run", "it crashes"), ("why_unmodified_cannot_run", {}), ("upstream.0.url", REMOVE),
        ("upstream.0.state", "unknown"), ("removal_plan", REMOVE), ("removal_plan.condition", ""), ("removal_plan.expires", "2027"),
        ("zh.why", REMOVE), ("notes", {"envs.py": "x"}), ("titel", "x"),
    ],
    "policy": [
        ("keys", REMOVE), ("keys.ci.role", REMOVE), ("keys.ci.role", "Builder"), ("keys.ci.file", "/abs"), ("keys.ci.pem", KEY),
        ("keys.tester.pem", "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----"), ("keys.ci.from", "now"), ("require.0.predicate", "slsa"),
        ("require.0.predicate", REMOVE), ("require.0.threshold", 0), ("require.0.threshold", "1"), ("require.1.verdicts", ["good"]),
        ("require.1.verdicts", []), ("require.1.max_age", "month"), ("require.1.distinct_roles", "yes"), ("revoked", {"sha256:1": "x"}), ("revoked", [A]),
        ("minimum_release", 3), ("waiver.expired", "fatal"), ("not_proven", True), ("requires", []),
    ],
    "site": [
        ("sites", {}), ("sites", REMOVE), ("sites.B300", {"runner": "docker"}), ("sites.b300.runner", REMOVE), ("sites.b300.runner", "k8s"),
        ("sites.b300.squash_folder", "rel"), ("sites.b300.mounts", ["/a"]), ("sites.b300.mounts", ["/a:b"]), ("sites.b300.models", ["x"]),
        ("sites.b300.gpus", 0), ("sites.b300.time_limit", "1:00"), ("sites.b300.partition", "a b"), ("sites.b300.tokn", "x"),
    ],
    "workspace": [
        ("schema", 2), ("manifests", "/abs"), ("manifests", "../x"), ("manifests", 5), ("overlay", "o"), ("masters", ["a", "a"]), ("masters", {}),
        ("changelog", ""),
    ],
}  # fmt: skip

BEYOND: dict[str, list[tuple[str, Any, str]]] = {
    "target": [
        ("base", f"docker.io/UPPER/x@{A}", "oci.bad-reference"),
        ("publish.repository", "docker.io/UPPER", "oci.bad-reference"), ("checks.gsm8k.arms", ["on"], "target.no-base-arm"),
        ("checks.gsm8k.concurrency", [1, 64], "target.several-concurrencies"),
    ],
    "overlay": [
        ("last_update", "2026-02-30", "overlay.bad-date"), ("proof", {"log": "("}, "overlay.bad-proof"), ("switch.on", "0", "overlay.bad-switch"),
        ("changes.2.edit.replace", "a\n\tb", "overlay.empty-edit"), ("guards.vllm/models/t.py.postimage", "absent", "overlay.bad-guard"),
        ("changes.1.to", "vllm/" + "x" * 256, "overlay.bad-path"),
    ],
    "waiver": [("removal_plan.expires", "2027-13-01", "overlay.bad-date")],
    "policy": [
        ("keys.ci.until", "2025-01-01", "target.policy-dates"), ("require.0.roles", ["approver"], "target.policy-role"),
        ("require.1.threshold", 3, "target.policy-threshold"),
    ],
    "site": [("sites.b300.squash_folder", REMOVE, "target.site-squash")],
    "workspace": [],
}  # fmt: skip


def altered(kind: str, path: str, value: Any) -> Any:
    """The good document of a kind with the value at `path` set, or taken out.  Keys with dots or slashes are found whole."""
    document = copy.deepcopy(GOOD[kind])
    place: Any = document
    rest = path
    while True:
        if isinstance(place, list):
            step, _, rest = rest.partition(".")
            key: Any = int(step)
        else:
            fits = [name for name in place if rest == name or rest.startswith(name + ".")]
            key = max(fits, key=len) if fits else rest
            rest = rest[len(key) + 1 :]
        if rest:
            place = place[key]
        elif value is REMOVE:
            del place[key]
            return document
        else:
            place[key] = value
            return document
