"""Asks the engine's registry of environment variables about switches, each value in a fresh process.

With arguments it is that process: `switch.py MODULE ATTRIBUTE NAME` prints what the registry says of NAME.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BOOT = "import sys;sys.argv=sys.argv[1:];exec(compile(open(sys.argv[0],'rb').read(),sys.argv[0],'exec'))"
MARK = "imagebuild-switch:"


def registry_module(name: str) -> Any:
    """The module, and how it was had: a registry whose package needs what the image lacks is run from its file alone."""
    try:
        return importlib.import_module(name), "imported"
    except ImportError as error:
        spec, path = None, None
        for part in range(1, name.count(".") + 2):
            full = ".".join(name.split(".")[:part])
            spec = None
            for finder in sys.meta_path:
                ask = getattr(finder, "find_spec", None)
                spec = ask(full, path) if ask is not None else None
                if spec is not None:
                    break
            if spec is None:
                raise
            path = spec.submodule_search_locations
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, f"its file alone, since importing it failed: {error}"


def told(name: str, attribute: str, variable: str) -> dict[str, Any]:
    module, how = registry_module(name)
    registry = getattr(module, attribute)
    names = list(registry) if hasattr(registry, "__iter__") else dir(registry)
    out: dict[str, Any] = {"how": how, "file": getattr(module, "__file__", None), "registered": variable in names}
    out["variables"] = len(names)
    if out["registered"]:
        value = registry[variable] if hasattr(registry, "__getitem__") else getattr(registry, variable)
        value = value() if callable(value) else value.get() if hasattr(value, "get") else value
        out.update(value=repr(value), true=bool(value))
    try:
        getattr(module, variable)
        out["attribute"] = True
    except AttributeError:
        out["attribute"] = False
    validate = getattr(module, "validate_environ", None)
    if callable(validate):
        try:
            validate(hard_fail=True)
            out["environment_refused"] = False
        except TypeError:
            pass
        except Exception as error:
            out["environment_refused"] = variable in str(error)
    return out


def ask(registry: str, variable: str, value: Any, deadline: float) -> dict[str, Any]:
    module, _, attribute = registry.partition(":")
    environment = {name: text for name, text in os.environ.items() if name != variable}
    if value is not None:
        environment[variable] = value
    program = os.path.join(os.environ["IMAGEBUILD_IN"], "switch.py")
    command = [sys.executable, "-B", "-c", BOOT, program, module, attribute, variable]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=deadline, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {deadline:.0f} s", "hung": True}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line[len(MARK) :])
            return found
    said = done.stderr.decode("utf-8", "replace")
    return {"error": said[-2000:] or f"exit {done.returncode} without a word", "missing": "ModuleNotFoundError" in said}


def main() -> int:
    if len(sys.argv) == 4:
        # validate_environ and the like may speak on stdout: the mark tells our line from theirs
        sys.stdout.write("\n" + MARK + json.dumps(told(*sys.argv[1:])) + "\n")
        sys.stdout.flush()
        os._exit(0)
    with open(os.path.join(os.environ["IMAGEBUILD_IN"], "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    asked = request["arguments"]
    # engines take their time to import: all values are asked at once
    deadline = max(5.0, request["deadline"] - 5.0)
    out = []
    with ThreadPoolExecutor(4) as pool:
        for one in asked["switches"]:
            made_up = one["env"] + "_IMAGEBUILD_CONTROL"
            cases = {
                "unset": (one["env"], None),
                "off": (one["env"], one["default"]),
                "on": (one["env"], one["on"]),
                "control": (made_up, one["on"]),
            }
            asking = {
                key: pool.submit(ask, asked["registry"], name, value, deadline) for key, (name, value) in cases.items()
            }
            out.append((one["env"], made_up, asking))
        found = [
            {"env": name, **{key: told.result() for key, told in asking.items()}, "made_up": made_up}
            for name, made_up, asking in out
        ]
    for row in found:
        row["control"] = {"env": row.pop("made_up"), **row["control"]}
    with open(os.environ["IMAGEBUILD_ANSWER"], "w", encoding="utf-8") as stream:
        json.dump({"registry": asked["registry"], "switches": found}, stream, indent=1, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
