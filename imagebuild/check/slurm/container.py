"""How a task's container is started: from a squash file by pyxis, or from an OCI bundle by Slurm itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from imagebuild.check.runner import IN, OUT, CheckedImage
from imagebuild.check.runners.bundle import user_of
from imagebuild.check.runners.loading import child_of
from imagebuild.check.slurm.bundle import bundle_template, make_frame
from imagebuild.check.slurm.script import program
from imagebuild.check.slurm.task import Task, inside_environment, mount_list, plain_path
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci.reference import HUB, DigestReference, TagReference, parse_reference
from imagebuild.target.site import Site

STATE = "/imagebuild/slurm"
"""Folder of the container where how the command ended is written down."""
_HUB_HOST = "registry-1.docker.io"

Values = dict[str, str | int | Sequence[str]]


class Container(Protocol):
    """Makes what a task's node needs of the image."""

    def check(self, task: Task) -> None:
        """Raises InputError or UnavailableError where an image cannot be brought there at all."""
        ...

    def prepare(self, task: Task, folder: Path, inside: str) -> Values:
        """Writes into the task's folder; gives what its settings say of the container."""
        ...


def write_inside(folder: Path, inside: str, environment: str) -> None:
    """The folder that becomes `STATE`: its writer is whatever user the image names."""
    state = folder / "run"
    state.mkdir(exist_ok=True)
    atomic_write(state / inside, program("inside.sh").encode(), 0o755)
    atomic_write(state / "environment", environment.encode(), 0o644)
    state.chmod(0o1777)


def own_mounts(folder: Path) -> list[tuple[str, str, bool]]:
    return [(str(folder / "in"), IN, True), (str(folder / "out"), OUT, False), (str(folder / "run"), STATE, False)]


class PyxisContainer:
    """A squash file named by digest in the site's folder, imported by the first task that finds none."""

    def __init__(self, site: Site) -> None:
        assert site.squash_folder is not None
        self._folder = plain_path(site.squash_folder, "the site's squash folder")

    def check(self, task: Task) -> None:
        squash_address(task.image)

    def prepare(self, task: Task, folder: Path, inside: str) -> Values:
        variables = task.outside
        write_inside(folder, inside, inside_environment(task, tuple(variables)))
        mounts = own_mounts(folder) + [(str(one.source), one.target, one.read_only) for one in task.job.mounts]
        return {
            "container": "pyxis",
            "squash": f"{self._folder}/sha256-{task.image.digest.hex}.sqsh",
            "address": squash_address(task.image),
            "mounts": mount_list(mounts),
            "workdir": child_of(task.image).config.working_dir,
            "names": ",".join(variables),
            "variables": [f"{name}={value}" for name, value in variables.items()],
            "inside": inside,
        }


class BundleContainer:
    """An unpacked image that every node sees and nobody writes to, and a bundle of its own for each task."""

    def __init__(self, unpack: Callable[[CheckedImage], Path]) -> None:
        self._unpack = unpack

    def check(self, task: Task) -> None:
        return None

    def prepare(self, task: Task, folder: Path, inside: str) -> Values:
        write_inside(folder, inside, inside_environment(task, ()))
        rootfs = self._unpack(task.image)
        plain_path(str(rootfs), "the folder of unpacked images")
        config = child_of(task.image).config
        with io_faults(folder, "writing"):
            (folder / "bundle").mkdir()
        layered = make_frame(rootfs, folder / "bundle" / "rootfs")
        user = user_of(config.section, rootfs)
        template = bundle_template(task, config, user, rootfs, layered, own_mounts(folder))
        atomic_write(folder / "bundle" / "template.json", template, 0o600)
        return {"container": "oci", "layered": layered, "variables": [], "inside": inside}


def squash_address(image: CheckedImage) -> str:
    """`docker://HOST#REPOSITORY:sha256:HEX` of the platform's manifest: enroot 3 has no `@DIGEST`, and what it takes for a
    tag goes into the registry's address as it is.  Raises InputError `check.slurm-needs-registry`."""
    try:
        named = parse_reference(image.reference)
    except ImagebuildError:
        named = None
    if not isinstance(named, TagReference | DigestReference):
        raise InputError(
            "check.slurm-needs-registry",
            f"enroot fetches images from a registry, and {image.reference[:200]} is in none",
            hint="push the image and name it by its reference, or give the site container: oci",
        )
    repository = named.repository
    host = _HUB_HOST if repository.host == HUB else repository.host
    return f"docker://{host}#{repository.path}:{image.digest}"
