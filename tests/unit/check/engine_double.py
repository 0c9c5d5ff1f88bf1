"""An engine for tests, started as a program: the synthetic server with a log, a switch and ways to fail.

Arguments: port, folder of questions, and words of `late` (up after a second), `dies` (ends at once), `dead-after=N`, `exits-after=N`, `wrong=N`,
`mute` (never up).  With TUNE=1 it prints that the tuned branch runs.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path


def main(port: str, folder: str, *words: str) -> int:
    value = dict(word.partition("=")[::2] for word in words)
    print(f"engine starts, TUNE={os.environ.get('TUNE')}", flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    if "dies" in value:
        print("no such kernel: gfx950", file=sys.stderr, flush=True)
        return 7
    if "mute" in value:
        ended.wait(60)
        return 0
    if "late" in value:
        ended.wait(1)
    # only now: a server that is waited for a second at most has said something by then
    from imagebuild.testing.openai_double import OpenAIDouble, Script

    rows = [json.loads(line) for line in (Path(folder) / "test.jsonl").read_text().splitlines()]
    wrong = range(int(value.get("wrong", "0")))
    dies = int(value["dead-after"]) if "dead-after" in value else None
    crashes = int(value["exits-after"]) if "exits-after" in value else None

    class Engine(OpenAIDouble):
        def fault(self, number: int) -> str | None:
            if crashes is not None and self.answered >= crashes:
                print("out of memory", file=sys.stderr, flush=True)
                os._exit(9)
            return super().fault(number)

    questions = [(row["question"], row["answer"].split("#### ")[1]) for row in rows]
    with Engine(Script(questions, wrong=wrong, dies_after=dies), int(port)):
        if os.environ.get("TUNE") == "1":
            print("INFO tuned branch runs over 4 ranks", file=sys.stderr, flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
