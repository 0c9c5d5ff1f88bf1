"""What goes over the wire: a locked build moves nothing of the base, and an unchanged one asks one question.

A recording proxy stands between every run and the real registry.  Reports retold here: bazel-contrib/rules_img#751 and
oras-project/rust-oci-client#235 (base layers are mounted); buildah's push from a machine that has never seen the base.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from real_registry import RealRegistry

from imagebuild.oci import media_types as mt
from imagebuild.testing.images import MadeImage
from imagebuild.testing.recording_proxy import Passed, RecordingProxy
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = pytest.mark.integration


@dataclass
class Remote:
    """A workspace whose base is in the registry, seen through the proxy; locked."""

    space: SmallWorkspace
    proxy: RecordingProxy
    registry: RealRegistry
    verb: Callable[..., Any]

    def push(self, *words: str) -> Any:
        self.proxy.clear()
        return self.verb("build", "tuned", "--push", "--json", *words)

    def of_base(self) -> list[Passed]:
        """GETs of anything that the base consists of: its layers, its config, its documents."""
        base = {str(digest) for digest in self.space.base.blobs}
        return [p for p in self.proxy.passed if p.method == "GET" and any(d in p.path for d in base)]

    def forget(self) -> None:
        """As on a new machine: the workspace as committed, the cache empty."""
        shutil.rmtree(self.space.cache, ignore_errors=True)
        shutil.rmtree(self.space.root / "build", ignore_errors=True)


@pytest.fixture
def remote(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> Iterator[Callable[..., Remote]]:
    with ExitStack() as proxies:

        def make(base: MadeImage, **target: Any) -> Remote:
            proxy = proxies.enter_context(RecordingProxy(registry.host))
            registry.put_image("lib/engine", "1.0", base)
            space = SmallWorkspace(tmp_path / "ws", base, f"{proxy.host}/lib/engine:1.0@{base.digest}")
            space.write_target(publish={"repository": f"{proxy.host}/team/engine", "tag": "tuned"}, **target)
            space.write_overlay()
            monkeypatch.chdir(space.root)
            monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
            made = Remote(space, proxy, registry, verb)
            locked = verb("lock", "tuned", "--json")
            assert locked.code == 0, locked.err
            assert locked.document["transfer"]["downloaded_bytes"] <= proxy.downloaded_bytes
            return made

        yield make


def kinds(passed: list[Passed]) -> list[str]:
    """Method and kind of each request, digests and sessions left out."""
    out = []
    for p in passed:
        path = p.path.partition("?")[0]
        path = re.sub(r"sha256:[0-9a-f]{64}", "DIGEST", path)
        path = re.sub(r"uploads/[^/]+$", "uploads/SESSION", path)
        out.append(f"{p.method} {path}" + (" mount" if "mount=" in p.path else ""))
    return out


def test_a_locked_build_with_an_empty_cache_fetches_nothing_of_the_base(remote: Any, any_base: MadeImage) -> None:
    r = remote(any_base)
    r.forget()
    built = r.push()
    assert built.code == 0, built.err
    assert r.of_base() == []
    assert [p for p in r.proxy.passed if p.method == "GET" and p.path != "/v2/"] == []
    assert r.registry.tags()["team/engine:tuned"] == str(r.space.digest())
    assert r.registry.incomplete() == []
    layers = {x["digest"]: x["size"] for p in built.document["platforms"] for x in p["layers"]}
    assert sum(layers.values()) <= r.proxy.uploaded_bytes <= sum(layers.values()) + 150_000
    base_layers = {x.descriptor.digest for x in any_base.layers}
    mounted = [p for p in r.proxy.passed if p.method == "POST" and "from=" in p.path and p.status == 201]
    assert built.document["transfer"]["mounted_blobs"] == len(mounted) == len(base_layers)


def test_four_sequential_rounds_at_most(remote: Any) -> None:
    """What must wait for what: everything of one round may be on its way at once, and no round begins before the one
    before it has ended."""
    base = engine_base(("linux/amd64", "linux/arm64"))
    r = remote(base)
    r.forget()
    assert r.push().code == 0
    rounds = []
    for p in r.proxy.passed:
        if p.path == "/v2/":
            continue
        if p.method in ("HEAD", "POST"):
            rounds.append(1)
        elif p.method in ("PUT", "PATCH", "DELETE") and "/uploads/" in p.path:
            rounds.append(2)
        elif p.method == "PUT" and "/manifests/sha256" in p.path:
            rounds.append(3)
        else:
            assert (p.method, p.path) == ("PUT", "/v2/team/engine/manifests/tuned")
            rounds.append(4)
    assert rounds[-1] == 4
    assert rounds.count(4) == 1
    assert rounds.count(3) == 2
    last = {n: max(i for i, x in enumerate(rounds) if x == n) for n in (1, 2, 3)}
    first = {n: min(i for i, x in enumerate(rounds) if x == n) for n in (2, 3, 4)}
    assert first[3] > last[2]
    assert first[3] > last[1]
    assert first[4] > last[3]
    # a blob is one upload: a POST and one PUT
    uploads = [p for p in r.proxy.passed if "/uploads/" in p.path and p.method in ("PUT", "PATCH")]
    assert len(uploads) == 1 + 2, kinds(r.proxy.passed)


def test_no_change_is_exactly_one_request(remote: Any, any_base: MadeImage) -> None:
    r = remote(any_base)
    assert r.push().code == 0
    for _ in range(2):
        r.forget()
        again = r.push()
        assert (again.code, again.document["unchanged"]) == (0, True)
        assert kinds([p for p in r.proxy.passed if p.path != "/v2/"]) == ["HEAD /v2/team/engine/manifests/tuned"]
        assert again.document["transfer"]["requests"] == len(r.proxy.passed)


def test_the_plan_tells_the_requests_and_bytes_beforehand(remote: Any, verb: Any, any_base: MadeImage) -> None:
    r = remote(any_base)
    r.proxy.clear()
    plan = verb("plan", "tuned", "--json").document["build"]
    assert r.proxy.passed == []
    r.forget()
    assert r.push().code == 0
    asked = [p for p in r.proxy.passed if p.path != "/v2/"]
    configs = sum(p.sent_bytes for p in asked) - plan["upload_bytes"]
    assert 0 <= configs < 10_000
    assert plan["worst_case_bytes"] == sum({x.descriptor.digest: x.descriptor.size for x in any_base.layers}.values())
    # each upload of ours asks first whether the blob is there already
    heads = sum(1 for p in asked if p.method == "HEAD" and "/blobs/" in p.path)
    assert len(asked) - heads == plan["requests"]


def test_locking_reads_only_the_layers_that_it_needs(remote: Any) -> None:
    base = engine_base()
    r = remote(base)
    got = [p.path.rpartition("/")[2] for p in r.proxy.passed if p.method == "GET" and "/blobs/" in p.path]
    stack = [str(x.descriptor.digest) for x in base.layers]
    assert [d for d in got if d in stack] == [stack[3], stack[2]]
    r.proxy.clear()
    assert r.verb("lock", "tuned").code == 0
    assert [p for p in r.proxy.passed if p.path.rpartition("/")[2] in stack] == []


def test_verify_of_a_pushed_image_reads_our_layers_only(remote: Any, any_base: MadeImage) -> None:
    r = remote(any_base)
    reference = r.push().document["reference"]
    r.forget()
    r.proxy.clear()
    verified = r.verb("verify", reference, "--target", "tuned", "--json")
    assert verified.code == 0, verified.out + verified.err
    layers = {str(x.descriptor.digest) for x in any_base.layers}
    assert [p for p in r.proxy.passed if p.path.rpartition("/")[2] in layers] == []
    assert len({p.path for p in r.proxy.passed}) == len(r.proxy.passed)


def test_content_that_is_not_committed_is_read_from_the_holders_layer_alone(remote: Any) -> None:
    base = engine_base()
    r = remote(base, content="cache")
    kept = [zlib.decompress(path.read_bytes()) for path in (r.space.folder() / "content").rglob("*.z")]
    patch, sbom = sorted(kept, key=lambda data: data.startswith(b"{"))
    assert b"RECORD" in patch.split(b"\n")[0]
    assert b'"CycloneDX"' in sbom
    r.forget()
    built = r.push()
    assert built.code == 0, built.err
    stack = [str(x.descriptor.digest) for x in base.layers]
    got = [p.path.rpartition("/")[2] for p in r.proxy.passed if p.method == "GET"]
    assert [d for d in got if d in stack] == [stack[2]]
    assert built.document["digest"] == str(r.space.digest())


def test_two_targets_on_one_base_share_what_they_push(remote: Any, verb: Any) -> None:
    r = remote(engine_base())
    r.space.write_target("other", publish={"repository": f"{r.proxy.host}/team/engine", "tag": "other"}, env={"A": "1"})
    assert verb("lock", "other").code == 0
    r.forget()
    r.proxy.clear()
    done = verb("build", "tuned", "other", "--push", "--json")
    assert done.code == 0, done.err
    assert done.document["kind"] == "build-results"
    mounts = [p.path for p in r.proxy.passed if p.method == "POST" and "from=" in p.path]
    assert len(mounts) == len(set(mounts)) == 4
    assert r.registry.incomplete() == []


def test_a_layout_on_disk_as_base_is_mounted_from_nowhere_and_said(
    registry: RealRegistry, in_workspace: Any, verb: Any
) -> None:
    """The registry has never seen the base: refused with the way out, and with it everything arrives."""
    space = in_workspace(family=mt.DOCKER)
    verb("lock", "tuned")
    refused = verb("build", "tuned", "--output", f"{registry.host}/team/engine:x", "--json")
    assert (refused.code, refused.document["code"]) == (1, "registry.mount-refused")
    assert "--allow-base-transfer" in refused.document["hint"]
    assert registry.tags() == {}
    moved = verb("build", "tuned", "--output", f"{registry.host}/team/engine:x", "--allow-base-transfer", "--json")
    assert moved.code == 0, moved.err
    assert registry.tags() == {"team/engine:x": str(space.digest())}
    assert registry.incomplete() == []
