"""The Slurm runner with a real Slurm: OCI bundles started by runc through srun --container."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import mounts_below
from real_slurm import RealSlurm
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import LAWS, WITH_FOLDER, is_gone

from imagebuild.check.runner import CheckedImage, Runner
from imagebuild.check.runners import open_runner
from imagebuild.target.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.slow(35)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealSlurm]:
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name,
        RealSlurm(Path(name)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nodes' own."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def runner(cluster: RealSlurm, folder: Path, disk: Path) -> Iterator[Runner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        site = Site(
            "test",
            "slurm",
            partition="test",
            container="oci",
            job_folder=str(folder),
            scratch=str(disk),
            time_limit=1800,
        )
        made = open_runner("slurm", site=site)
        assert made.available() is None
        yield made
        made.close()


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    LAWS[law](runner, debian_image)


@pytest.mark.parametrize("law", WITH_FOLDER)
def test_law_with_a_folder(law: str, runner: Runner, debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    WITH_FOLDER[law](runner, debian_image, tmp_path / "folder")


def test_nothing_is_left(runner: Runner, folder: Path, disk: Path, tmp_path: Path) -> None:
    runner.close()
    assert mounts_below(tmp_path) == []
    assert list(folder.iterdir()) == []
    # a task tells its end before it clears up its node's disk
    assert is_gone(lambda: list(disk.iterdir()))
