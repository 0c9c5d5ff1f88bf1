"""Runs one of an overlay's own checks: the overlay's folder is unpacked, and the check started in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any

LIMIT = 1 << 20


def main() -> int:
    with open(os.path.join(os.environ["IMAGEBUILD_IN"], "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    asked, began = request["arguments"], time.monotonic()
    answer: dict[str, Any] = {"file": asked["file"], "arguments": asked["arguments"]}
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(os.path.join(os.environ["IMAGEBUILD_IN"], "overlay.zip")) as archive:
            archive.extractall(folder)
        command = [sys.executable, "-B", os.path.join(folder, asked["file"]), *asked["arguments"]]
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                timeout=max(5.0, request["deadline"] - 5), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            answer.update(hung=True, stdout=(error.stdout or b"").decode("utf-8", "replace")[-LIMIT:])
        else:
            answer.update(
                code=done.returncode,
                stdout=done.stdout.decode("utf-8", "replace")[-LIMIT:],
                stderr=done.stderr.decode("utf-8", "replace")[-LIMIT:],
            )
    answer["seconds"] = round(time.monotonic() - began, 3)
    with open(os.environ["IMAGEBUILD_ANSWER"], "w", encoding="utf-8") as stream:
        json.dump(answer, stream, indent=1, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
