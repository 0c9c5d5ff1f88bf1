"""Step 7: the checks that overlays bring themselves, run inside the image."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuild.check.runner import Devices, Outcome
from imagebuild.check.smoke.machine_faults import recognise
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, inside_job, read_inside, result_of
from imagebuild.check.verdicts import Verdict
from imagebuild.content.canonical import load_json
from imagebuild.content.files import io_faults
from imagebuild.errors import ImagebuildError, RefusedError, clean
from imagebuild.overlay.document import Overlay

STEP = "overlay"
FOLDER_LIMIT = 32 << 20
"""Bytes of an overlay's folder that are sent along with its checks."""
SENT = ("checks", "files", "patches", "overlay.yaml")
BUNDLED = (1980, 1, 1, 0, 0, 0)


def checks_of(overlay: Overlay) -> tuple[str, ...]:
    """`checks/NAME.py` of an overlay, sorted; names that begin with `_` are what checks import."""
    folder = overlay.folder / "checks"
    if not folder.is_dir():
        return ()
    return tuple(sorted(f"checks/{path.name}" for path in folder.glob("*.py") if not path.name.startswith("_")))


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    """One for each check, with accelerators where the target is made for some."""
    return jobs_with(request, request.devices)


def jobs_with(request: SmokeRequest, devices: Devices | None) -> tuple[StepJob, ...]:
    out = []
    for overlay in request.overlays:
        names = checks_of(overlay)
        if not names:
            continue
        bundle = bundled(overlay)
        for name in names:
            key = f"{overlay.name}/{name.removeprefix('checks/')}"
            told = request.settings.overlay_args
            arguments = {"file": name, "arguments": list(told.get(key, ()))}
            files = {"overlay.zip": bundle}
            out.append(inside_job(request, STEP, key, "overlay_check", arguments, files=files, devices=devices))
    return tuple(out)


def bundled(overlay: Overlay) -> bytes:
    """The overlay's folder as a zip archive whose bytes follow from its files."""
    found = io.BytesIO()
    total = 0
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(overlay.folder):
            with io_faults(path, "reading"):
                data = path.read_bytes()
            total += len(data)
            if total > FOLDER_LIMIT:
                raise RefusedError(
                    "check.overlay-too-large",
                    f"the overlay {overlay.name} is too large to be sent along with its checks",
                    expected=f"at most {FOLDER_LIMIT >> 20} MiB below {', '.join(SENT)}",
                )
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(overlay.folder)), BUNDLED), data)
    return found.getvalue()


def _files(folder: Path) -> list[Path]:
    out = []
    for name in SENT:
        place = folder / name
        out += [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return sorted(path for path in out if "__pycache__" not in path.parts)


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    asked = jobs(request)
    if not asked:
        return result_of(request, STEP, asked, {}, [part(STEP, Verdict.NOT_RUN, "no overlay brings checks of its own")])
    parts: list[Part] = []
    facts: dict[str, Any] = {}
    for one in asked:
        found = read_inside(request, one, outcomes[one.key])
        if found.faults:
            parts += found.faults
            continue
        document = _document(found.answer.get("stdout", ""))
        facts[one.key] = {
            "code": found.answer.get("code"),
            "arguments": found.answer["arguments"],
            "document": document,
        }
        parts.append(judged(one.key, found.answer, document))
    return result_of(request, STEP, asked, outcomes, parts, facts=facts)


def _document(text: str) -> dict[str, Any] | None:
    """The JSON document that a check prints, None where it prints none."""
    try:
        value = load_json(text.encode(), "the check's answer")
    except ImagebuildError:
        return None
    return value if isinstance(value, dict) else None


def judged(key: str, answer: Mapping[str, Any], document: Mapping[str, Any] | None) -> Part:
    """Exit code 0 is yes, 1 no, 2 wrong arguments, 3 could not be run here; a document's verdict must say the same."""
    if answer.get("hung"):
        return part(key, Verdict.INFRASTRUCTURE, "hung: it did not end by its deadline")
    code = answer["code"]
    said = document.get("verdict") if document is not None else None
    reason = clean(str(document.get("reason", "")), 300) if document is not None else ""
    by_code = {0: "passed", 1: "failed", 3: "not-run"}.get(code)
    tail = clean(" / ".join(answer.get("stderr", "").strip().splitlines()[-3:]), 400)
    if said is not None and said != by_code:
        return part(key, Verdict.INVALID, f"it says {said!s:.40} and ends with {code}")
    if by_code is None:
        known = recognise(answer.get("stderr", ""))
        if known is not None:
            return Part(key, known[0].judgement(known[1]))
        what = "its arguments are wrong" if code == 2 else f"it ended with {code}"
        return part(key, Verdict.INVALID, f"{what}: {tail or 'it said nothing'}")
    if by_code == "passed":
        return part(key, Verdict.PASSED, reason)
    if by_code == "failed":
        known = recognise(answer.get("stderr", ""))
        if known is not None and said is None:
            return Part(key, known[0].judgement(known[1]))
        return part(key, Verdict.FAILED, reason or tail or "its assertions do not hold")
    return part(key, Verdict.NOT_RUN, reason or tail or "it could not be run here")
