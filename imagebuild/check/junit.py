"""Verdicts as JUnit XML, so that CI shows a check's parts (cli.md, Exit codes: failure, error, skipped)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

from imagebuild.check.verdicts import Judgement
from imagebuild.errors import clean


@dataclass(frozen=True, slots=True)
class Case:
    """One part of a check.  `seconds` is what it took, None where that was not measured."""

    name: str
    judgement: Judgement
    seconds: float | None = None


def junit_xml(suite: str, cases: Iterable[Case]) -> bytes:
    """One test suite.  What could not be found out is an error or skipped, never a pass; equal cases give equal bytes."""
    given = list(cases)
    kinds = [case.judgement.verdict.junit for case in given]
    counts = {word: str(kinds.count(kind)) for word, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))}  # fmt: skip
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(root, "testsuite", {"name": clean(suite, 500), "tests": str(len(given)), **counts})
    for case, kind in zip(given, kinds, strict=True):
        about = {"classname": clean(suite, 500), "name": clean(case.name, 500)}
        if case.seconds is not None:
            about["time"] = f"{case.seconds:.3f}"
        child = ElementTree.SubElement(element, "testcase", about)
        said = {"type": str(case.judgement.verdict), "message": clean(case.judgement.reason, 4000)}
        if kind == "pass":
            if case.judgement.reason:
                ElementTree.SubElement(child, "system-out").text = clean(case.judgement.reason, 4000)
        else:
            ElementTree.SubElement(child, kind, said if kind != "skipped" else {"message": said["message"]})
    ElementTree.indent(root)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode").encode() + b"\n"
