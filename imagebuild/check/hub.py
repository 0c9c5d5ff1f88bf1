"""GSM8K from the models' hub, by revision: fetched by the library that lm-eval brings, and known by its digest.

What a revision holds is not taken on trust: written as lines of JSON, the rows give the bytes of the questions' own files,
and those are pinned (`protocol.TEST_DIGEST`, `TRAIN_DIGEST`).
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from imagebuild.check import protocol
from imagebuild.check.protocol import Dataset, load_dataset
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import InputError, RefusedError, UnavailableError, clean
from imagebuild.host import process

SCHEME = "hub:"
NAME = "openai/gsm8k"
DEADLINE = 900.0
_REVISION = re.compile(r"[0-9a-f]{40}")
_PROGRAM = """\
import json, sys
from datasets import load_dataset
name, revision, folder = sys.argv[1:]
for split in ("test", "train"):
    rows = load_dataset(name, "main", revision=revision, split=split)
    with open(f"{folder}/{split}.jsonl", "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps({"question": row["question"], "answer": row["answer"]}) + "\\n")
"""


def parse_hub(text: str) -> str | None:
    """The revision of `hub:REVISION`; None for a path.  Raises InputError `check.bad-revision` for anything movable."""
    if not text.startswith(SCHEME):
        return None
    revision = text.removeprefix(SCHEME)
    if not _REVISION.fullmatch(revision):
        raise InputError(
            "check.bad-revision",
            f"the questions of {NAME} are named by a commit: a branch may hold others tomorrow",
            expected="hub:<40 hexadecimal digits>",
            found=text[:200],
        )
    return revision


def fetch_dataset(revision: str, python: str, folder: Path) -> Dataset:
    """The questions of a revision, kept in `folder` and fetched once.

    Raises UnavailableError `check.hub-unavailable` where `python` has no `datasets` or the hub does not answer, RefusedError
    `check.other-questions` where the revision holds anything but GSM8K's own questions.
    """
    kept = folder / revision
    if not (kept / "train.jsonl").is_file():
        with io_faults(folder, "writing"):
            kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".hub-", dir=folder) as scratch:
            done = process.run([python, "-c", _PROGRAM, NAME, revision, scratch], deadline=DEADLINE)
            if done.code != 0:
                raise UnavailableError(
                    "check.hub-unavailable",
                    f"{NAME} at {revision} could not be fetched: {clean(done.stderr.decode('utf-8', 'replace')[-600:])}",
                    hint="name a Python with lm-eval by --eval-python, or a folder with test.jsonl and train.jsonl by --data",
                )
            found = _official(load_dataset(Path(scratch)), revision)
            # the second is written last: with it the folder is whole
            atomic_write(kept / "test.jsonl", found.test)
            atomic_write(kept / "train.jsonl", found.train)
    return _official(load_dataset(kept), revision)


def _official(found: Dataset, revision: str) -> Dataset:
    if not found.official:
        raise RefusedError(
            "check.other-questions",
            f"revision {revision} of {NAME} does not hold GSM8K's own questions",
            expected=f"{protocol.TEST_DIGEST} and {protocol.TRAIN_DIGEST}",
            found=f"{found.to_json()['test']} and {found.to_json()['train']}",
            hint="name another revision",
        )
    return found
