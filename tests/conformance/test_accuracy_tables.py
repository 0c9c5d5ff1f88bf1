"""Our statistics against values that statsmodels gave for random tables (accuracy_tables.json, beside this file)."""

import json
from pathlib import Path

import pytest

from imagebuild.check.paired import PairedTable, mcnemar_exact
from imagebuild.check.unpaired import Proportion, unpaired_difference

TABLES = json.loads((Path(__file__).parent / "accuracy_tables.json").read_text("utf-8"))["tables"]


def test_statsmodels_agrees_to_nine_digits() -> None:
    assert len(TABLES) == 60
    for row in TABLES:
        x, n, y, m = row["figures"]
        found = unpaired_difference(Proportion(x, n), Proportion(y, m))
        assert found.z == pytest.approx(row["z"], abs=1e-9)
        assert found.p == pytest.approx(row["p"], abs=1e-9)
        assert (found.wald.lower, found.wald.upper) == pytest.approx(row["wald"], abs=1e-9)
        assert (found.newcombe.lower, found.newcombe.upper) == pytest.approx(row["newcombe"], abs=1e-9)
        gained, lost = row["discordant"]
        assert mcnemar_exact(PairedTable(5, gained, lost, 5)) == pytest.approx(row["mcnemar"], abs=1e-9)
