"""Questions for a real model: GSM8K's own where they are at hand, else small sums in its form."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from imagebuild.check.protocol import load_dataset

ROOT = Path(__file__).resolve().parents[2]
OFFICIAL, OURS = "GSM8K", "sums of our own"
VARIABLE = "IMAGEBUILD_TEST_GSM8K"
QUESTIONS = 20


def gsm8k_questions(folder: Path) -> tuple[Path, str]:
    """A folder with test.jsonl and train.jsonl, and whose questions they are.

    IMAGEBUILD_TEST_GSM8K names GSM8K's folder; else it is looked for as `data/gsm8k` in and beside the repository.  Only
    the pinned files count.
    """
    named = os.environ.get(VARIABLE)
    if named:
        assert load_dataset(Path(named)).official, f"{VARIABLE}={named} holds other files than GSM8K's"
        return Path(named), OFFICIAL
    for place in _places():
        if (place / "test.jsonl").is_file() and (place / "train.jsonl").is_file() and load_dataset(place).official:
            return place, OFFICIAL
    print(f"no GSM8K at hand ({VARIABLE}): the questions are {OURS}")
    return _sums(folder), OURS


def _places() -> Iterator[Path]:
    yield ROOT / "data" / "gsm8k"
    yield from sorted(ROOT.parent.glob("data/gsm8k"))
    yield from sorted(ROOT.parent.glob("*/data/gsm8k"))


def _sums(folder: Path) -> Path:
    """Short questions, since a CPU reads the five shots anew for each."""
    folder.mkdir()
    for name, first, count in (("test", 3, QUESTIONS), ("train", 60, 5)):
        numbers = [(7 * n, 5 * n + 4) for n in range(first, first + count)]
        rows = [{"question": f"{a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"} for a, b in numbers]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
