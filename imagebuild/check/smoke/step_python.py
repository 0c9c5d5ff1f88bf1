"""Step 2, in the container and without an accelerator: what Python really imports is what was patched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.brought_pip import pip_archive
from imagebuild.check.smoke.machine_faults import recognise
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, inside_job, read_inside, result_of
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import clean
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.identity import normalise_version

STEP = "python"
WAYS = {"working_folder": "python -m, from the image's working folder", "script": "a console script"}


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    arguments = {
        "modules": [{"path": one.path, "module": one.module} for one in request.expected.sources],
        "distributions": sorted(request.expected.versions),
        "import": True,
    }
    pip = pip_archive()
    files = {} if pip is None else {"pip.zip": pip}
    return (inside_job(request, STEP, STEP, "modules", arguments, also=("importing",), files=files),)


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    asked = jobs(request)
    found = read_inside(request, asked[0], outcomes[STEP])
    if found.faults:
        return result_of(request, STEP, asked, outcomes, list(found.faults), hardware=_machine(found.machine))
    answer = found.answer
    parts = [part("hashes", Verdict.PASSED, f"{len(request.expected.paths)} changed paths")]
    parts += _modules(answer)
    parts += _compiled(answer)
    parts.append(_interpreter(answer))
    parts += _versions(request, answer)
    parts.append(_pip(request, answer))
    parts += _imports(answer)
    facts = {key: answer.get(key) for key in ("search_path", "finders", "pythonpath", "versions", "modules")}
    facts |= {"content_id": str(request.expected.content_id), "python": found.machine.get("python")}
    return result_of(request, STEP, asked, outcomes, parts, facts=facts, hardware=_machine(found.machine))


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    return {"cpu": machine["architecture"], "kernel": machine.get("kernel")} if "architecture" in machine else {}


def _modules(answer: Mapping[str, Any]) -> Iterator[Part]:
    """The file and the code that an import of each changed module gives."""
    faults: list[str] = []
    unknown: list[str] = []
    good = 0
    for one in answer["modules"]:
        if not one["module"]:
            unknown.append(one["path"])
            continue
        why = [f"{_why(one, one[way])}, started as {WAYS[way]}" for way in WAYS if _why(one, one[way])]
        faults += why[:1]
        good += not why
    if faults:
        more = f" ({len(faults)} modules in all)" if len(faults) > 1 else ""
        finders = [name for name in answer["finders"] if name not in _OWN_FINDERS]
        by = f"; import hooks: {', '.join(finders)}" if finders else ""
        by += f"; PYTHONPATH={answer['pythonpath']}" if answer["pythonpath"] else ""
        yield part("imported files", Verdict.FAILED, faults[0] + more + by)
    elif good:
        yield part("imported files", Verdict.PASSED, f"{good} modules, from the patched files and with their code")
    else:
        yield part("imported files", Verdict.PASSED, "no Python module was changed")
    if unknown:
        yield part(
            "modules without a name",
            Verdict.NOT_PROVEN,
            f"{unknown[0]} is below no folder of the search path: only its bytes were compared ({len(unknown)} in all)",
        )


_OWN_FINDERS = ("BuiltinImporter", "FrozenImporter", "PathFinder")


def _why(one: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Why an import does not run the patched file; "" where it does."""
    name = one["module"]
    if not found["found"]:
        return f"Python finds no {name}" + (f" ({clean(found['error'], 200)})" if found.get("error") else "")
    if not found["same_file"]:
        return f"Python imports {name} from {found['origin']}, and the patch is at {one['path']}"
    if found.get("same_code") is False:
        by = f"bytecode {found['bytecode']}" if found.get("bytecode") else f"the loader {found['loader']}"
        return f"{by} runs instead of the patched source of {name}"
    return ""


def _compiled(answer: Mapping[str, Any]) -> Iterator[Part]:
    broken = {path: why for path, why in answer["compiled"].items() if why}
    if broken:
        path, why = next(iter(broken.items()))
        yield part("compile", Verdict.FAILED, f"{path}: {clean(why, 300)}")
    elif answer["compiled"]:
        yield part("compile", Verdict.PASSED, f"{len(answer['compiled'])} sources")


def _interpreter(answer: Mapping[str, Any]) -> Part:
    """The engine's own commands must be run by the interpreter that was asked."""
    others = [one for one in answer["scripts"] if one["prefix"] != answer["prefix"]]
    if others:
        one = others[0]
        return part(
            "interpreter",
            Verdict.INVALID,
            f"{one['path']} is run by {one['interpreter']} ({one['prefix']}), and {answer['prefix']} was asked; name it "
            "as checks.smoke.python",
        )
    return part("interpreter", Verdict.PASSED, answer["prefix"])


def _versions(request: SmokeRequest, answer: Mapping[str, Any]) -> Iterator[Part]:
    wrong = [
        f"{name} is {found or 'not installed'}, expected {version}"
        for name, version in request.expected.versions.items()
        if (found := answer["versions"].get(name)) is None or normalise_version(found) != normalise_version(version)
    ]
    if wrong:
        yield part("versions", Verdict.FAILED, "; ".join(wrong))
    elif request.expected.versions:
        yield part("versions", Verdict.PASSED, ", ".join(f"{n} {v}" for n, v in request.expected.versions.items()))


def _pip(request: SmokeRequest, answer: Mapping[str, Any]) -> Part:
    """`pip check`.  What it says of distributions whose metadata we did not touch, it says of the base too."""
    done = answer["pip"]
    if "No module named pip" in done["output"] or done.get("missing"):
        return part("pip check", Verdict.NOT_RUN, "pip is not in the image")
    if done["code"] is None:
        return part("pip check", Verdict.INFRASTRUCTURE, "pip check did not end by its deadline")
    if done["code"] == 0:
        return part("pip check", Verdict.PASSED, f"by {done['by']}")
    ours = {normalise_name(name) for name in request.expected.replaced}
    lines = [
        line.strip() for line in done["output"].splitlines() if " requires " in line or " has requirement " in line
    ]
    lines += [line.strip() for line in done["output"].splitlines() if " is not supported on this platform" in line]
    if not lines:
        return part("pip check", Verdict.NOT_RUN, f"pip check did not work: {clean(done['output'].strip(), 300)}")
    new = [line for line in lines if ours & {normalise_name(word.strip(",.;")) for word in _names(line)}]
    if new:
        return part("pip check", Verdict.FAILED, clean("; ".join(new[:3]), 400))
    return part("pip check", Verdict.PASSED, f"{len(lines)} complaints that the base has too: {clean(lines[0], 160)}")


def _names(line: str) -> list[str]:
    """The words of a complaint that may be names of distributions."""
    out = []
    for word in line.split():
        bare = word.strip(",.;")
        for end in "<>=!~[;(":
            bare = bare.split(end)[0]
        out.append(bare)
    return [word for word in out if word and word[0].isalnum()]


def _imports(answer: Mapping[str, Any]) -> Iterator[Part]:
    """The changed modules imported for real; what needs something that this image or machine lacks is not run."""
    imports = answer["imports"]
    if not imports:
        return
    left_out = answer["not_imported"]
    wanted = {one["module"]: one for one in answer["modules"] if one["module"] and one["module"] not in left_out}
    own = {name.partition(".")[0] for name in wanted}
    found = imports["modules"]
    imported, missing, failed, hung = [], [], [], []
    for name, one in wanted.items():
        told = found.get(name, {"state": "not reached"})
        state = told["state"]
        if state == "imported":
            if told["same_file"]:
                imported.append(name)
            else:
                failed.append(f"{name} was imported from {told['file']}, and the patch is at {one['path']}")
        elif state == "missing" and str(told["missing"]).partition(".")[0] not in own:
            missing.append(f"{name} needs {told['missing']}")
        elif state == "library":
            missing.append(f"{name}: {clean(told['error'].strip().splitlines()[-1], 200)}")
        elif state in ("started", "not reached") and imports["process"]["code"] is None:
            hung.append(name)
        else:
            said = told.get("error") or imports["process"]["output"]
            last = said.strip().splitlines()[-1] if said.strip() else f"exit {imports['process']['code']}"
            known = recognise(said)
            if known is not None and known[0].verdict is not Verdict.FAILED:
                # this step asks for no accelerator: a module that cannot be imported without one is not run
                missing.append(f"{name} needs an accelerator ({known[1]})")
                continue
            failed.append(f"{name}: {clean(last, 300)}")
    if failed:
        yield part("import", Verdict.FAILED, f"{failed[0]} ({len(failed)} in all)" if len(failed) > 1 else failed[0])
    if hung:
        yield part("import", Verdict.INFRASTRUCTURE, f"hung: the import of {hung[0]} did not end by its deadline")
    if missing:
        why = f"{missing[0]}, not to be had here" + (
            f" ({len(missing)} of {len(wanted)} modules)" if len(wanted) > 1 else ""
        )
        yield part("import", Verdict.NOT_RUN, why)
    elif not failed and not hung:
        yield part("import", Verdict.PASSED, f"{len(imported)} modules")
