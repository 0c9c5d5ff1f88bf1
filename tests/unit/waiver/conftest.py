"""A locked workspace for each test of waivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from waiver_space import PUBLISH, SWITCH, write_waiver

from imagebuild.testing.small_engine import SmallWorkspace


@pytest.fixture
def waived(in_workspace: Callable[..., SmallWorkspace], verb: Callable[..., Any]) -> Callable[..., SmallWorkspace]:
    """`waived(switch=…, link=…)`: target `tuned`, published, with waiver 77, locked and rendered."""

    def make(*, switch: bool = False, render: bool = True, **waiver: Any) -> SmallWorkspace:
        space = in_workspace()
        space.write_target(publish=PUBLISH, sku="b300", waiver=77)
        if switch:
            path = space.root / "overlays" / "tune" / "overlay.yaml"
            path.write_text(path.read_text().replace("author: tests\n", "author: tests\n" + SWITCH))
        assert verb("lock", "tuned").code == 0
        write_waiver(space, **waiver)
        if render:
            assert verb("waiver", "render", "77").code == 0
        return space

    return make
