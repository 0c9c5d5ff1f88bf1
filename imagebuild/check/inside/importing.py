"""Imports modules for real, one after another, and tells how each went: `importing.py RESULT MODULE…`.

The result is rewritten before each import and after it, so that an import that hangs or kills the process is known by name.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any


def attempt(name: str) -> dict[str, Any]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return {"state": "missing", "missing": error.name, "error": str(error)}
    except ImportError as error:
        library = "cannot open shared object file" in str(error)
        return {"state": "library" if library else "error", "error": traceback.format_exc()[-3000:]}
    except BaseException:  # SystemExit of an import included
        return {"state": "error", "error": traceback.format_exc()[-3000:]}
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return {"state": "imported", "file": getattr(module, "__file__", None), "origin": origin}


def main() -> int:
    place, names = sys.argv[1], sys.argv[2:]
    found: dict[str, Any] = {}
    for name in names:
        found[name] = {"state": "started"}
        write(place, found)
        found[name] = attempt(name)
        write(place, found)
    sys.stdout.flush()
    # threads and exit handlers of what was imported are no part of the question
    os._exit(0)


def write(place: str, found: dict[str, Any]) -> None:
    with open(place + ".part", "w", encoding="utf-8") as stream:
        json.dump(found, stream)
    os.replace(place + ".part", place)


if __name__ == "__main__":
    main()
