"""Two changed Python files on a 3 GB engine base: every way that this machine has, in one run.

Makes the base out of pinned wheels (once, minutes; kept in IMAGEBUILD_BENCH_CACHE), starts a registry on loopback and runs
docker, BuildKit, buildah, umoci, crane and imagebuild, each from process start, `--repeat` times.  Every result's file
tree is compared with the one asked for.  Prints one table; `--json FILE` writes everything.  Needs root, docker-registry
and skopeo, some 25 GB of disk; a program that is missing is skipped with a reason.

    python benchmarks/overlay_build.py                       the whole run, about half an hour
    python benchmarks/overlay_build.py --quick               one round on a small base, to try the programs
    python benchmarks/overlay_build.py --ways own-locked,crane --repeat 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from harness import machine, table
from harness.delaying_proxy import rounds
from harness.docker_ways import Daemon, DockerWay
from harness.engine_base import cache_folder, engine_base
from harness.measure import Failed, Place, Result, Step, Way, measure_once, run
from harness.own_ways import PROGRAM, AloneWay, OwnWay
from harness.peer_ways import BuildahWay, CraneWay, UmociWay
from harness.registry import Registry
from harness.trees import Tree, base_tree, faults

from imagebuild.testing.wheel_base import MadeBase

DELAY = 0.05
"""Seconds that the proxy holds a request back."""
RESULTS = "patched"
HERE = Path(__file__).resolve().parent


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def all_ways(work: Path, sid: str, layer: Sequence[str]) -> list[Way]:
    """Every way, in the order of the table.  `layer` is the engine's layer as first_read.py wants it."""
    daemon, buildah, umoci = Daemon(work / "docker"), work / "buildah", work / "umoci"
    own = work / "own"

    def first_read() -> Sequence[str]:
        return [sys.executable, str(HERE / "harness" / "first_read.py"), *layer]

    return [
        DockerWay(daemon, work, buildkit=False, again=False),
        DockerWay(daemon, work, buildkit=True, again=False),
        BuildahWay(buildah, again=False),
        UmociWay(umoci, again=False),
        CraneWay(work / "crane", sid, delayed=False),
        OwnWay(own, "cold"),
        OwnWay(own, "cold", new=True),
        OwnWay(own, "cold", base="above"),
        OwnWay(own, "cold", base="joined"),
        OwnWay(own, "complete"),
        DockerWay(daemon, work, buildkit=False, again=True),
        DockerWay(daemon, work, buildkit=True, again=True),
        BuildahWay(buildah, again=True),
        UmociWay(umoci, again=True),
        OwnWay(own, "again"),
        OwnWay(own, "locked"),
        OwnWay(own, "unchanged"),
        OwnWay(own, "verify"),
        CraneWay(work / "crane", sid, delayed=True),
        OwnWay(own, "locked", delayed=True),
        AloneWay("first-read", "first read of the engine's layer: every file listed and hashed", "base", first_read),
        OwnWay(own, "imports"),
        AloneWay("version", "imagebuild --version", "base", lambda: [PROGRAM, "--version"]),
    ]


class Bench:
    """One run of the benchmark: registry, proxy, bases and what is known of them."""

    def __init__(self, registry: Registry, work: Path, small: bool) -> None:
        self.registry, self.work, self.small = registry, work, small
        self.bases: dict[str, MadeBase] = {}
        self.layers: dict[str, list[str]] = {}
        self.trees: dict[str, Tree] = {}
        self.proxy_port = 0
        self.proxy_log = work / "proxy.log"

    def prepare(self, name: str) -> None:
        """Makes a base, pushes it where the registry lacks it, and learns its tree."""
        if name in self.bases:
            return
        told = 0.0

        def progress(what: str, done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told > 10:
                told = time.monotonic()
                tell(f"  {what}: {done >> 20} of {total >> 20} MiB")

        stack = "small" if self.small else name
        tell(f"the base {name}")
        made = engine_base(stack, progress)
        tag = self.place(name).base_tag
        if not self.registry.holds("engine/base", tag, str(made.digest)):
            destination = f"docker://{self.registry.host}/engine/base:{tag}"
            command = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"]
            run(Step("push the base", [*command, f"oci:{made.folder}:v1", destination]))
        _, manifest = self.registry.manifest("engine/base", tag)
        self.layers[name] = [layer["digest"] for layer in manifest["layers"]]
        self.trees[name] = base_tree(
            str(made.digest), [self.registry.blob(layer) for layer in self.layers[name]], cache_folder() / "trees"
        )
        self.bases[name] = made

    def place(self, name: str) -> Place:
        tag = "small" if self.small else name
        return Place(self.registry.host, RESULTS, base_tag=tag)

    def forget(self) -> None:
        self.registry.forget(RESULTS)

    def engine_layer(self) -> list[str]:
        """The engine's layer of the base: file, media type, digest, size."""
        _, manifest = self.registry.manifest("engine/base", self.place("base").base_tag)
        layer = manifest["layers"][-2]
        return [str(self.registry.blob(layer["digest"])), layer["mediaType"], layer["digest"], str(layer["size"])]

    @contextmanager
    def proxy(self) -> Iterator[None]:
        self.proxy_log.write_bytes(b"")
        command = [sys.executable, str(HERE / "harness" / "delaying_proxy.py"), "--to", self.registry.host]
        child = subprocess.Popen(
            [*command, "--delay", str(DELAY), "--log", str(self.proxy_log)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            self.proxy_port = int(child.stdout.readline())
            yield
        finally:
            child.terminate()
            child.wait()

    def measure(self, way: Way, repeat: int) -> Result:
        result = Result()
        result.skipped = way.missing() or ""
        if result.skipped:
            tell(f"{way.key}: skipped, {result.skipped}")
            return result
        self.prepare(way.base)
        place = replace(self.place(way.base), base_digest=str(self.bases[way.base].digest))
        if way.delayed:
            place = replace(place, host=f"127.0.0.1:{self.proxy_port}")
        try:
            for number in range(repeat):
                way.before(place, number, self.forget)
                from_byte = self.proxy_log.stat().st_size
                measure_once(way, place, number, result, self.registry, self.layers[way.base])
                if way.delayed:
                    time.sleep(0.1)
                    lines = self.proxy_log.read_bytes()[from_byte:].splitlines()
                    seen = [json.loads(line) for line in lines]
                    result.rounds.append(rounds([(item["begun"], item["ended"]) for item in seen]))
                if way.checked:
                    wanted = way.job(number).paths()
                    found = faults(
                        self.registry, RESULTS, place.tag, self.layers[way.base], self.trees[way.base], wanted
                    )
                    result.faults += found
                    result.same_tree = not result.faults
                tell(f"{way.key}: {result.walls[-1]:.3f} s")
        except Failed as error:
            tell(f"{way.key}: {error}")
            result.skipped = "failed: " + str(error).strip().rpartition("\n")[2][:200]
        if result.faults:
            tell(f"{way.key}: another tree than asked for: " + "; ".join(result.faults[:3]))
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each way; the table has medians (default: 5)")
    parser.add_argument("--ways", default="", help="only these, by name, separated by commas; see --list")
    parser.add_argument("--list", action="store_true", help="print the names of the ways")
    parser.add_argument("--quick", action="store_true", help="one run of each way, on the engine's layer alone")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--table", type=Path, help="write the table there too")
    options = parser.parse_args()
    sid = os.environ.get("IMAGEBUILD_SID_ROOT") or "/var/cache/imagebuild-ci/sid"
    work = cache_folder() / "work"
    if options.list:
        print("\n".join(way.key for way in all_ways(work, sid, [])))
        return 0
    for program in ("docker-registry", "skopeo"):
        if shutil.which(program) is None:
            tell(f"{program} is not installed; nothing can be measured without it")
            return 3
    signal.signal(signal.SIGTERM, _stop)
    return _measure(options, work, sid)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what was started is being stopped
    raise KeyboardInterrupt


def _measure(options: argparse.Namespace, work: Path, sid: str) -> int:
    names = [name for name in options.ways.split(",") if name]
    repeat = 1 if options.quick else options.repeat
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    before = machine.load()
    with Registry(cache_folder() / "registry") as registry:
        bench = Bench(registry, work, options.quick)
        bench.prepare("base")
        ways = all_ways(work, sid, bench.engine_layer())
        unknown = set(names) - {way.key for way in ways}
        if unknown:
            tell(f"no such way: {', '.join(sorted(unknown))}; see --list")
            return 2
        if options.quick:
            ways = [way for way in ways if way.base == "base"]
        ways = [way for way in ways if not names or way.key in names]
        results: dict[str, Result] = {}
        try:
            with bench.proxy():
                for number, way in enumerate(ways):
                    results[way.key] = bench.measure(way, repeat)
                    _store(options, ways[: number + 1], results, bench, before, sid)
                    if not any(_same_store(way, later) for later in ways[number + 1 :]):
                        way.close()
        finally:
            for way in ways:
                way.close()
            bench.forget()
            shutil.rmtree(work, ignore_errors=True)
        text = table.markdown(ways, results, DELAY)
        print(text)
        if options.table:
            options.table.write_text(text)
    return 1 if any(result.faults or result.skipped.startswith("failed") for result in results.values()) else 0


def _same_store(one: Way, other: Way) -> bool:
    """Whether a later way goes on with what this one has stored."""
    return type(one) is type(other) and isinstance(one, (DockerWay, BuildahWay, UmociWay))


def _store(
    options: argparse.Namespace,
    ways: list[Way],
    results: Mapping[str, Result],
    bench: Bench,
    before: Sequence[float],
    sid: str,
) -> None:
    """Writes what is known so far: a run that is stopped has not been for nothing."""
    if not options.json:
        return
    sizes = {
        name: [bench.registry.blob(digest).stat().st_size for digest in digests]
        for name, digests in bench.layers.items()
    }
    document = {
        "kind": "overlay-build-benchmark",
        "schemaVersion": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "repeat": 1 if options.quick else options.repeat,
        "quick": options.quick,
        "delay_seconds": DELAY,
        "load_before": before,
        "load_after": machine.load(),
        "machine": machine.describe(CraneWay(bench.work, sid, delayed=False).program),
        "base_layer_bytes": sizes,
        "ways": table.document(ways, results),
    }
    options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
