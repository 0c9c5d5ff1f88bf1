"""Which files Python really imports for the changed modules, and which bytecode, found by asking it.

Every finder of `sys.meta_path` is asked in its order, as an import does, without running any package; the loader that
answers is asked for the code that it would run, which is compared with what the patched source compiles to.  Both ways
of starting are looked at: `python -m` (working folder first) and a console script (without it).  Then the modules are
imported for real, in a process of their own.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import types
from typing import Any

LIMIT = 4000
"""Characters kept of what other programs say."""


def find(name: str) -> Any:
    """The spec that an import of `name` would take, its packages not run; None where no finder knows it."""
    spec, path, full = None, None, ""
    for part in name.split("."):
        if spec is not None:
            path = spec.submodule_search_locations
            if path is None:
                return None
        full = f"{full}.{part}" if full else part
        spec = None
        for finder in sys.meta_path:
            ask = getattr(finder, "find_spec", None)
            spec = ask(full, path) if ask is not None else None
            if spec is not None:
                break
        if spec is None:
            return None
    return spec


def same(one: Any, two: Any) -> bool:
    """Whether two code objects, or constants of them, do the same (names of files apart)."""
    if isinstance(one, types.CodeType) and isinstance(two, types.CodeType):
        names: tuple[str, ...] = (
            "co_code",
            "co_names",
            "co_varnames",
            "co_freevars",
            "co_cellvars",
            "co_flags",
            "co_argcount",
        )
        names += ("co_posonlyargcount", "co_kwonlyargcount", "co_name", "co_firstlineno", "co_exceptiontable")
        if any(getattr(one, name, None) != getattr(two, name, None) for name in names):
            return False
        return len(one.co_consts) == len(two.co_consts) and all(map(same, one.co_consts, two.co_consts))
    if type(one) is not type(two):
        return False
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two if isinstance(one, frozenset) else repr(one) == repr(two)


def loaded_code(spec: Any) -> dict[str, Any]:
    """The code that the loader would run, and what it read for it."""
    loader = spec.loader
    read: list[str] = []
    if loader is None or not hasattr(loader, "get_code"):
        return {"loader": type(loader).__name__, "code": None, "read": read}
    original = getattr(loader, "get_data", None)
    if original is not None:

        def get_data(path: str) -> Any:
            data = original(path)
            read.append(path)
            return data

        with contextlib.suppress(AttributeError):
            loader.get_data = get_data
    try:
        code = loader.get_code(spec.name)
    finally:
        if original is not None:
            with contextlib.suppress(AttributeError):
                del loader.get_data
    return {"loader": type(loader).__name__, "code": code, "read": read}


def look(name: str, path: str) -> dict[str, Any]:
    """What one module would be, against the changed file at `path`."""
    try:
        spec = find(name)
        if spec is None:
            return {"found": False}
        out: dict[str, Any] = {"found": True, "origin": spec.origin, "cached": spec.cached}
        held = loaded_code(spec)
    except Exception as error:
        return {"found": False, "error": f"{type(error).__name__}: {error}"[:LIMIT]}
    out["loader"] = held["loader"]
    out["same_file"] = bool(spec.origin) and os.path.realpath(spec.origin) == os.path.realpath(path)
    bytecode = [one for one in held["read"] if one.endswith(".pyc")]
    out["bytecode"] = bytecode[0] if bytecode and path not in held["read"] and spec.origin not in held["read"] else None
    if not out["same_file"]:
        return out
    try:
        with open(path, "rb") as stream:
            expected = compile(stream.read(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return out
    out["same_code"] = held["code"] is not None and same(held["code"], expected)
    return out


def names_for(path: str) -> list[str]:
    """Import names that a file could have, by the search path."""
    out = []
    for entry in sys.path:
        folder = os.path.realpath(entry or os.getcwd())
        if path.startswith(folder + "/"):
            parts = path[len(folder) + 1 : -len(".py")].split("/")
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts and all(part.isidentifier() for part in parts):
                out.append(".".join(parts))
    return out


def both_ways(name: str, path: str) -> dict[str, Any]:
    whole = list(sys.path)
    out = {"working_folder": look(name, path)}
    try:
        if sys.path and sys.path[0] in ("", os.getcwd()):
            del sys.path[0]
        out["script"] = look(name, path)
    finally:
        sys.path[:] = whole
    return out


def compiled(path: str) -> str | None:
    """Why the file does not compile; None where it does."""
    try:
        with open(path, "rb") as stream:
            compile(stream.read(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"[:LIMIT]
    return None


def run(command: list[str], deadline: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return {"code": None, "output": (error.stdout or b"").decode("utf-8", "replace")[-LIMIT:]}
    except OSError as error:
        return {"code": None, "output": str(error), "missing": True}
    return {"code": done.returncode, "output": done.stdout.decode("utf-8", "replace")[-LIMIT:]}


def pip_check() -> dict[str, Any]:
    """`pip check` by the image's pip; where it has none by one that came with its Python, else by the one that was sent."""
    bundled = os.path.join(os.path.dirname(os.__file__), "ensurepip", "_bundled", "pip-*.whl")
    wheels = sorted(glob.glob(bundled) + glob.glob("/usr/share/python-wheels/pip-*.whl"))
    sent = os.path.join(os.environ["IMAGEBUILD_IN"], "pip.zip")
    done: dict[str, Any] = {"code": None, "output": "No module named pip"}
    for by, start in [("the image's pip", ["-m", "pip"])] + [(wheel, [wheel + "/pip"]) for wheel in [*wheels, sent]]:
        if by != "the image's pip" and not os.path.exists(by):
            continue
        done = run([sys.executable, "-B", *start, "--disable-pip-version-check", "check"], 120)
        done["by"] = "a pip that was brought along" if by == sent else by
        if done["code"] is None or "No module named pip" not in done["output"]:
            break
    return done


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def interpreter_of(script: str) -> str | None:
    """The program that a console script names in its first lines."""
    with open(script, "rb") as stream:
        first, second = stream.readline(4096).strip(), stream.readline(4096).strip()
    if not first.startswith(b"#!"):
        return None
    words = first[2:].split()
    if words and words[0].endswith(b"/sh") and second.startswith(b"'''exec'"):
        words = second[len(b"'''exec'") :].split()
    if words and words[0].endswith(b"/env") and len(words) > 1:
        return shutil.which(words[1].decode("utf-8", "replace"))
    return words[0].decode("utf-8", "replace").strip('"') if words else None


def scripts(distributions: list[str]) -> list[dict[str, Any]]:
    """The console scripts of these distributions, with the prefix of the interpreter that runs each."""
    out, known = [], {}
    for name in distributions:
        try:
            points = importlib.metadata.distribution(name).entry_points
        except importlib.metadata.PackageNotFoundError:
            continue
        for point in points:
            place = shutil.which(point.name) if point.group == "console_scripts" else None
            if place is None:
                continue
            interpreter = interpreter_of(place)
            if interpreter is None or "python" not in os.path.basename(interpreter):
                continue
            if interpreter not in known:
                known[interpreter] = run([interpreter, "-c", "import sys;print(sys.prefix)"], 30)["output"].strip()
            out.append({"name": point.name, "path": place, "interpreter": interpreter, "prefix": known[interpreter]})
    return out


def main() -> int:
    began = time.monotonic()
    with open(os.path.join(os.environ["IMAGEBUILD_IN"], "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    asked, moved = request["arguments"], json.loads(os.environ["IMAGEBUILD_MOVED"])
    place = os.environ["IMAGEBUILD_ANSWER"]

    def moved_path(path: str) -> str:
        for folder in sorted(moved, key=len, reverse=True):
            if path.startswith(folder + "/"):
                return str(moved[folder]) + path[len(folder) :]
        return path

    answer: dict[str, Any] = {
        "search_path": list(sys.path),
        "finders": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
        "pythonpath": os.environ.get("PYTHONPATH"),
        "optimize": sys.flags.optimize,
        "prefix": sys.prefix,
        "modules": [],
        "compiled": {},
        "not_imported": [],
    }
    wanted = []
    for one in asked["modules"]:
        path = moved_path(one["path"])
        answer["compiled"][one["path"]] = compiled(path)
        names = [one["module"]] if one["module"] else names_for(os.path.realpath(path))
        ways = {name: both_ways(name, path) for name in names}
        # of several names by which a file could be imported the one that leads to it counts
        name = next(
            (name for name in names if ways[name]["working_folder"].get("same_file")), names[0] if names else ""
        )
        answer["modules"].append({"path": one["path"], "module": name, **(ways[name] if name else {})})
        if name.endswith("__main__"):
            answer["not_imported"].append(name)  # importing it would run the program
        elif name:
            wanted.append(name)
    answer["versions"] = {name: version_of(name) for name in asked["distributions"]}
    answer["scripts"] = scripts(asked["distributions"])
    answer["pip"] = pip_check()
    answer["imports"] = {}
    if asked["import"] and wanted:
        results = place + ".imports"
        left = max(5.0, request["deadline"] - (time.monotonic() - began) - 5)
        boot = "import sys;sys.argv=sys.argv[1:];exec(compile(open(sys.argv[0],'rb').read(),sys.argv[0],'exec'))"
        program = os.path.join(os.environ["IMAGEBUILD_IN"], "importing.py")
        done = run([sys.executable, "-B", "-c", boot, program, results, *wanted], left)
        answer["imports"]["process"] = done
        try:
            with open(results, encoding="utf-8") as stream:
                answer["imports"]["modules"] = json.load(stream)
            os.unlink(results)
        except (OSError, ValueError):
            answer["imports"]["modules"] = {}
        for one in answer["modules"]:
            told = answer["imports"]["modules"].get(one["module"], {})
            if told.get("state") == "imported":
                told["same_file"] = os.path.realpath(told["file"] or "") == os.path.realpath(moved_path(one["path"]))
    with open(place, "w", encoding="utf-8") as stream:
        json.dump(answer, stream, indent=1, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
