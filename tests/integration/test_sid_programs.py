"""The programs of Debian unstable run, see the test's folder, and leave no mount behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from sid_programs import PROGRAMS, SidPrograms

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_starts(sid: SidPrograms, name: str) -> None:
    word = "--version" if name in ("skopeo", "umoci") else "version"
    done = sid.run(name, word, check=False)
    # crane of Debian has no build information and says so with exit 1.
    assert done.returncode == 0 or b"build information" in done.stderr


def test_the_folder_is_seen_and_no_mount_stays(sid: SidPrograms) -> None:
    (sid.folder / "d").mkdir()
    path = sid.folder / "d" / "f"
    path.write_bytes(b"seen")
    assert sid.run("cat", sid.inside(path)).stdout == b"seen"
    assert str(sid.root) not in Path("/proc/self/mountinfo").read_text()
