"""What a site says of a Slurm cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.errors import ImagebuildError
from imagebuild.target.site import load_sites

TEXT = """\
schema: 1
sites:
  lab:
    runner: slurm
    container: oci
    job_folder: /shared/jobs
    queue_limit: 12h
    options: {options}
"""


def test_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(TEXT.format(options="[--exclusive, --mem=0, --constraint=h200&nvme]"))
    site = load_sites(path)["lab"]
    assert (site.job_folder, site.queue_limit) == ("/shared/jobs", 43200)
    assert site.options == ("--exclusive", "--mem=0", "--constraint=h200&nvme")


@pytest.mark.parametrize(
    "option", ["--wrap=true", "--array=0-9", "--output=/x", "-p", "--mem=0;true", "--time=1", "--x y"]
)
def test_options_that_would_change_what_a_job_is(tmp_path: Path, option: str) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(TEXT.format(options=f'["{option}"]'))
    with pytest.raises(ImagebuildError):
        load_sites(path)
