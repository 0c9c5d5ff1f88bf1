"""What no waiver cures, told apart: where the image lives, what the recipe documents, what the model computes; and what
can be done where a waiver is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from imagebuild.errors import ImagebuildError
from imagebuild.oci.reference import HUB, DigestReference, TagReference, parse_reference
from imagebuild.waiver.facts import TargetFacts
from imagebuild.waiver.findings import BLOCKING, NOTE, WARNING, Finding
from imagebuild.waiver.headings import CONFIG
from imagebuild.waiver.page import Page, code_spans
from imagebuild.waiver.render import WaiverFacts

UPSTREAM_NAMESPACES = ("vllm", "lmsysorg")
"""Docker Hub namespaces of the engines' own projects, which alone are admitted on established hardware."""
_MODEL_CODE = re.compile(r"(?:^|/)(?:models|model_executor/models|modeling)/")


def find_not_cured(page: Page, facts: WaiverFacts | None) -> Iterator[Finding]:
    """Findings that stand whatever the waiver says; they do not decide its verdict."""
    if facts is None:
        for line, name in images_of(page):
            fault = namespace_fault(name)
            if fault:
                yield Finding("image.namespace", WARNING, fault, page.file, line)
        return
    for target in facts.targets:
        image = target.image
        if image is not None:
            fault = namespace_fault(image)
            if fault:
                where = f" (on {target.target.sku}, established hardware)" if target.target.sku else ""
                yield Finding("image.namespace", WARNING, fault + where, page.file)
        yield from _of_target(target, page)


def _of_target(target: TargetFacts, page: Page) -> Iterator[Finding]:
    names = sorted({o.switch.env for o in target.overlays if o.switch is not None})
    if names:
        yield Finding(
            "recipe.documentation",
            NOTE,
            f"{', '.join(names)} must be documented in the engine's own recipes, merged before the change; nothing here can tell",
            page.file,
        )
    models = [item.name for item in target.items if _MODEL_CODE.search(item.name)]
    if models:
        yield Finding(
            "model.code-patched",
            NOTE,
            f"a model's own code is patched ({', '.join(models[:5])}): a person must see that its architecture is not",
            page.file,
        )


def namespace_fault(name: str) -> str | None:
    """What is wrong with the place of an image, None where it is upstream's."""
    try:
        reference = parse_reference(name)
    except ImagebuildError:
        return None
    if not isinstance(reference, DigestReference | TagReference):
        return None
    host, path = reference.repository.host, reference.repository.path
    if host == HUB and path.partition("/")[0] in UPSTREAM_NAMESPACES:
        return None
    return (
        f"{host}/{path} is no upstream repository: {' and '.join(n + '/…' for n in UPSTREAM_NAMESPACES)} on {HUB} are"
    )


_IMAGE_LINE = re.compile(r"\b(?:image|container)\b|镜像", re.IGNORECASE)
_IMAGE = re.compile(
    r"(?:docker://)?[a-z0-9][a-z0-9._-]*(?:[:#/][a-z0-9._-]+)*/[A-Za-z0-9._/-]+(?::[\w][\w.-]*)?(?:@sha256:[0-9a-f]{64})?"
)


def images_of(page: Page) -> Iterator[tuple[int, str]]:
    """Line and name of each image that a hand-made page names where it says what it covers: code spans on lines about an
    image, with a tag or a digest."""
    section = page.section(CONFIG)
    for line in section.lines if section is not None else ():
        if not _IMAGE_LINE.search(line.text):
            continue
        for span in code_spans(line.text):
            if len(span) > 500:
                continue
            if (":" in span.rpartition("/")[2] or "@" in span) and _IMAGE.fullmatch(span.removeprefix("docker://")):
                yield line.number, span


def ways_out(findings: Iterable[Finding], facts: WaiverFacts | None) -> tuple[str, ...]:
    """In words, what can be done about a refusal of what is patched; none where only the page is at fault."""
    codes = {finding.code for finding in findings if finding.severity == BLOCKING}
    if not codes & {"waiver.unmodified-image-runs", "waiver.no-upstream-link", "waiver.patch-not-needed"}:
        return ()
    switches = sorted(
        {o.switch.env for t in (facts.targets if facts else ()) for o in t.overlays if o.switch is not None}
    )
    base = ", ".join(
        sorted({f"{t.lock.inputs.base}@{t.lock.inputs.base_digest}" for t in (facts.targets if facts else ())})
    )
    named = f" {base}" if base else ""
    return (
        f"run the unmodified image{named} with {' and '.join(switches)} removed from the recipe; that needs no waiver"
        if switches
        else f"run the unmodified image{named} where it runs; that needs no waiver",
        "open the upstream pull request, name it in the overlay's `forwarded`, and wait for an image that carries it: its"
        " base then holds the postimages, and the overlay can go (merged)",
        "outside that repository, release under a policy of your own (policy.yaml): a waiver is needed only where the policy"
        " asks for one",
    )
