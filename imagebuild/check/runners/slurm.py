"""`slurm`: jobs of a cluster, through sbatch; a container from a squash file (pyxis) or from an OCI bundle."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from imagebuild.check.runner import CheckedImage, Job, Outcome, Server
from imagebuild.check.runners.place import Place, laid_out, remove_tree
from imagebuild.check.runners.rootfs import Rootfs
from imagebuild.check.runners.serving import Live
from imagebuild.check.slurm.array import Batch
from imagebuild.check.slurm.client import SlurmClient
from imagebuild.check.slurm.container import BundleContainer, Container, PyxisContainer
from imagebuild.check.slurm.server import start_server
from imagebuild.check.slurm.task import Task
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import InputError, UnavailableError
from imagebuild.target.site import Site


class SlurmRunner:
    """Starts jobs on the nodes of a site's cluster.

    Files go and come through the site's job folder, which every node sees.  The images stay: squash files in the site's
    squash folder, unpacked images in the job folder until `close`.
    """

    name = "slurm"

    def __init__(self, site: Site | None, place: Place, *, client: SlurmClient | None = None) -> None:
        if site is None:
            raise InputError(
                "check.slurm-no-site",
                "the runner slurm needs a site: partition, folders and limits of the cluster",
                hint="describe it in sites.yaml and give its name with --site",
            )
        folder = site.job_folder or (f"{site.squash_folder}/jobs" if site.squash_folder else None)
        if folder is None:
            raise InputError(
                "check.slurm-no-folder",
                f"site {site.name}: there is no folder for the files of jobs",
                hint="give the site job_folder: a folder that this machine and every node see",
            )
        self._site = site
        # scratch is disk of a node, never of this machine
        self._place = replace(place, scratch=None)
        self._folder = Path(folder)
        self._client = client or SlurmClient()
        self._live = Live()
        # others may use the images, and jobs that outlive this process: `close` decides when they go
        self._images = Rootfs(self._folder / "images", keep=True)

    def available(self) -> str | None:
        return self._client.available()

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        return self.run_many([(image, job)])[0]

    def run_many(self, jobs: Sequence[tuple[CheckedImage, Job]], *, keep: bool = False) -> tuple[Outcome, ...]:
        """Runs all of them as one job array; the outcomes in the order of `jobs`.

        The same call after this process was killed goes on where it was: tasks that ended are not run again.  With `keep`
        the same call gives the same outcomes until `forget`.
        """
        tasks = self._tasks(jobs)
        return self._batch().run(tasks, keep=keep) if tasks else ()

    def forget(self, jobs: Sequence[tuple[CheckedImage, Job]]) -> None:
        """Removes what `run_many` kept."""
        self._batch().forget([Task(image, laid_out(job, self._place)) for image, job in jobs])

    def _batch(self) -> Batch:
        return Batch(self._site, self._folder, self._container(), self._client)

    def serve(self, image: CheckedImage, job: Job, port: int) -> Server:
        (task,) = self._tasks([(image, replace(job, network=True))])
        server = start_server(self._site, self._folder, self._container(), self._client, task, port)
        return self._live.add(server)

    def close(self) -> None:
        """Stops servers, and removes unpacked images, if no job of anybody is on its way that may need one."""
        self._live.close()
        images = self._folder / "images"
        if self._place.keep or not images.is_dir():
            return
        if any(one.is_dir() for kind in ("tasks-*", "server-*") for one in self._folder.glob(kind)):
            return
        trash = self._folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with io_faults(images, "removing"):
            images.rename(trash)
        remove_tree(trash)

    def _tasks(self, jobs: Sequence[tuple[CheckedImage, Job]]) -> list[Task]:
        reason = self._client.available()
        if reason is not None:
            raise UnavailableError("check.no-runner", f"the runner slurm cannot work here: {reason}")
        tasks = [Task(image, laid_out(job, self._place)) for image, job in jobs]
        container = self._container()
        for task in tasks:
            container.check(task)
        return tasks

    def _container(self) -> Container:
        if self._site.container == "pyxis":
            return PyxisContainer(self._site)
        return BundleContainer(self._images.of)
