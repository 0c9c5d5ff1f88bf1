"""sites.yaml as values: what belongs to a place, never to a target (formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.content.schema import (
    Field,
    Integer,
    List,
    Map,
    Object,
    Text,
    build_each,
    json_schema,
    nearest,
    validate,
)
from imagebuild.content.strict_yaml import load_yaml, no_entries
from imagebuild.errors import InputError
from imagebuild.overlay.vocabulary import DURATION, ENV, LINE, name_of
from imagebuild.target.sku import SKUS

RUNNERS = ("docker", "podman", "oci", "slurm", "host")
CONTAINERS = ("pyxis", "oci")


@dataclass(frozen=True, slots=True)
class Site:
    """One place where checks run.  `runner` starts containers there; with slurm `container` says how (pyxis with a
    squash file in `squash_folder`, or an OCI bundle).  `mounts` are `HOST:CONTAINER[:ro]`; `models` maps a model's id to
    its folder; `time_limit` in seconds; `labels` are those of CI runners; `skus` the accelerators that are there (none: any)."""

    name: str
    runner: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    container: str = "pyxis"
    squash_folder: str | None = None
    job_folder: str | None = None
    scratch: str | None = None
    mounts: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=no_entries)
    env: Mapping[str, str] = field(default_factory=no_entries)
    labels: tuple[str, ...] = ()
    skus: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    gpus: int | None = None
    time_limit: int = 7200
    queue_limit: int = 86400

    def __post_init__(self) -> None:
        if self.runner == "slurm" and self.container == "pyxis" and self.squash_folder is None:
            raise InputError(
                "target.site-squash",
                f"site {self.name}: pyxis reads a squash file, and no folder for it is named",
                expected="squash_folder: an absolute folder that every node sees",
                details={"key": "runner"},
            )


_FOLDER = Text("an absolute path", pattern=r"/[^\u0000-\u001f\u007f:]*", form="/…")
_SLURM_WORD = Text("a word", pattern=r"[A-Za-z0-9][A-Za-z0-9_.@,-]*")

_SLURM_OPTION = Text(
    "an option of sbatch",
    # those that this program sets, or that would change what a job runs, are not taken
    pattern=r"--(?!(?:array|chdir|comment|container|error|export|gres|help|input|job-name|nodes|ntasks|no-requeue|open-mode"
    r"|output|parsable|requeue|test-only|time|version|wait|wrap)(?:=|$))[a-z][a-z-]*(?:=[A-Za-z0-9_.,:/*&|@+%-]+)?",
    form="--name or --name=value; not what the site's other keys and this program say",
)

_SITE = Object(
    {
        "runner": Field(Text("a runner", choices=RUNNERS), "what starts the containers", required=True),
        "partition": Field(_SLURM_WORD, "Slurm's partition"),
        "account": Field(_SLURM_WORD, "Slurm's account"),
        "qos": Field(_SLURM_WORD, "Slurm's quality of service"),
        "container": Field(Text("pyxis or oci", choices=CONTAINERS), "how Slurm starts a container"),
        "squash_folder": Field(_FOLDER, "where squash files lie, on a file system that all nodes see"),
        "job_folder": Field(_FOLDER, "where files of jobs lie, on a file system that all nodes see"),
        "scratch": Field(_FOLDER, "local disk for temporary files and caches"),
        "mounts": Field(
            List(
                Text(
                    "a mount",
                    pattern=r"/[^\u0000-\u001f\u007f:]*:/[^\u0000-\u001f\u007f:]*(?::(?:ro|rw))?",
                    form="/HOST:/CONTAINER, or /HOST:/CONTAINER:ro",
                ),
                unique=True,
            ),
            "folders that containers see",
        ),
        "models": Field(Map(LINE, _FOLDER), "model id: folder"),
        "env": Field(ENV, "environment of every run here"),
        "labels": Field(List(LINE, unique=True), "labels of CI runners"),
        "skus": Field(
            List(Text("an accelerator", choices=tuple(SKUS)), unique=True),
            "accelerators of the place; any if left out",
        ),
        "options": Field(List(_SLURM_OPTION, unique=True), "further options of sbatch"),
        "gpus": Field(Integer("a number of devices", minimum=1, maximum=1024), "devices of one node"),
        "time_limit": Field(DURATION, "longest time of one run"),
        "queue_limit": Field(DURATION, "longest wait in Slurm's queue"),
    },
    "a site",
)


def _sites(values: dict[str, Any]) -> Mapping[str, Site]:
    return build_each(values["sites"], lambda name, site: Site(name=name, **site), "sites")


SITES = Object(
    {
        "schema": Field(Integer("the format's number", only=1), "number of this format", required=True),
        "sites": Field(Map(name_of("a site"), _SITE, minimum=1), "name: site", required=True),
    },
    "a mapping",
    _sites,
)


def site_schema() -> dict[str, Any]:
    """The JSON Schema of sites.yaml."""
    return json_schema(SITES, name="site.json", title="imagebuild sites")


def load_sites(path: Path) -> Mapping[str, Site]:
    """Every site of the file, by name.  Raises InputError, or SeveralErrors of them, with file and line."""
    sites: Mapping[str, Site] = validate(load_yaml(path), SITES)
    return sites


def choose_site(sites: Mapping[str, Site], name: str) -> Site:
    """Raises InputError `target.unknown-site`."""
    if name in sites:
        return sites[name]
    near = nearest(name, sites)
    raise InputError(
        "target.unknown-site",
        f"there is no site {name[:80]}",
        expected=", ".join(sites),
        found=name,
        hint=f"did you mean {near}?" if near else None,
    )
