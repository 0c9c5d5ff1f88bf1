"""The two pages of a waiver, from facts: English and Chinese, one structure, no fact typed twice.

Same facts give the same bytes.  The Chinese page differs from the English one in prose alone: code, addresses and digests
come from one list and stand in the same order on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import no_entries
from imagebuild.waiver.document import Waiver
from imagebuild.waiver.evidence import Evidence, TestRecord
from imagebuild.waiver.facts import PatchedItem, TargetFacts
from imagebuild.waiver.headings import ACCURACY, BY_KEY, CONFIG, PATCHED, REMOVAL, UPSTREAM, WHY
from imagebuild.waiver.page_words import CHINESE, ENGLISH, Words


@dataclass(frozen=True, slots=True)
class WaiverFacts:
    """A waiver with everything that its pages state, by target: `evidence` on record, and `variables`, the names that the
    image registers (empty where its registry is not kept here)."""

    waiver: Waiver
    targets: tuple[TargetFacts, ...]
    evidence: Mapping[str, Evidence] = field(default_factory=no_entries)
    variables: Mapping[str, frozenset[str]] = field(default_factory=no_entries)

    def links_of(self, item: PatchedItem) -> tuple[str, ...]:
        """The upstream links of a change: its overlays' own; where they have none and the waiver covers one overlay only,
        those of the waiver."""
        if item.upstream:
            return item.upstream
        overlays = {overlay.name for facts in self.targets for overlay in facts.overlays}
        return tuple(link.url for link in self.waiver.upstream) if len(overlays) <= 1 else ()


def page_name(number: int, *, chinese: bool = False) -> str:
    return f"{number}{'_zh' if chinese else ''}.md"


def render_page(facts: WaiverFacts, *, chinese: bool = False) -> str:
    """One page as Markdown, ending in a newline."""
    words = CHINESE if chinese else ENGLISH
    waiver = facts.waiver
    title = waiver.zh.title if chinese and waiver.zh is not None else waiver.title
    other = page_name(waiver.number, chinese=not chinese)
    links = f"[English](./{other}) | **中文**" if chinese else f"**English** | [中文](./{other})"
    blocks = [f"# {words.title.format(number=waiver.number)}: {prose(title)}", links]
    sections = (
        (CONFIG, _config(facts, words)),
        (PATCHED, _patched(facts, words)),
        (WHY, _why(facts, words, chinese)),
        (UPSTREAM, _upstream(facts, words)),
        (ACCURACY, _accuracy(facts, words)),
        (REMOVAL, _removal(facts, words, chinese)),
    )
    for key, body in sections:
        blocks.append(f"## {BY_KEY[key].zh if chinese else BY_KEY[key].en}")
        blocks += body
    blocks += ["---", *_provenance(facts, words)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def prose(text: str) -> str:
    """People's text on the page: headings and tables in it must not become the page's own."""
    lines = text.strip().splitlines()
    return "\n".join("\\" + line if line.lstrip()[:1] in ("#", "|") and line[:1] != " " else line for line in lines)


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(text: str) -> str:
    """A code span, whatever the text holds (CommonMark 6.1)."""
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *[list(row) for row in rows]]
    return "\n".join("| " + " | ".join(cell(item) for item in line) + " |" for line in lines)


def _config(facts: WaiverFacts, words: Words) -> list[str]:
    lines = [f"- {words.config_entry}: {code(name)}" for name in facts.waiver.configs]
    for target in facts.targets:
        inputs = target.lock.inputs
        platforms = ", ".join(code(str(p.platform)) for p in inputs.platforms)
        lines.append(f"- {words.target}: {code(target.name)} ({platforms})")
        lines.append(f"  - {words.base}: {code(f'{inputs.base}@{inputs.base_digest}')}")
        image = target.image
        lines.append(f"  - {words.image}: {code(image) if image else words.not_published}")
    return ["\n".join(lines)]


def _states(item: PatchedItem, words: Words) -> str:
    if item.kind == "environment":
        return f"→ {code(f'{item.name}={item.after}')}"
    after = words.absent if item.after == "absent" else code(item.after or "")
    if item.before is None:
        return f"→ {after}"
    return f"{words.absent if item.before == 'absent' else code(item.before)} → {after}"


def _patched(facts: WaiverFacts, words: Words) -> list[str]:
    out = []
    for target in facts.targets:
        if len(facts.targets) > 1:
            out.append(f"### {code(target.name)}")
        rows = []
        for item in target.items:
            where = f" ({', '.join(code(str(p)) for p in item.platforms)})" if item.platforms else ""
            links = facts.links_of(item)
            note = [words.kinds[item.kind]] if item.kind != "file" or item.before == "absent" else []
            note = [words.new_file] if item.kind == "file" and item.before == "absent" else note
            note += [", ".join(code(name) for name in item.overlays)] if item.overlays else []
            note += [item.note] if item.note else []
            rows.append(
                [
                    code(item.name) + where,
                    _states(item, words),
                    ", ".join(f"<{url}>" for url in links) or words.no_link,
                    "; ".join(note),
                ]
            )
        out.append(_table(words.columns, rows) if rows else words.nothing)
        roots = {root.name: root.folder for p in target.lock.inputs.platforms for root in p.roots}
        out.append("\n".join(f"- {code(name)} {words.stands_for} {code(path)}" for name, path in sorted(roots.items())))
        if target.derived:
            lines = "\n".join(f"- {code(item.path)}: {words.derived[item.origin]}" for item in target.derived)
            out.append(f"{words.derived_intro}\n\n{lines}")
    return out


def _switches(facts: WaiverFacts, words: Words) -> str:
    found = {o.name: o.switch for target in facts.targets for o in target.overlays if o.switch is not None}
    return "\n".join(
        words.switch.format(env=code(s.env), on=code(s.on), default=code(s.default)) for _, s in sorted(found.items())
    )


def _why(facts: WaiverFacts, words: Words, chinese: bool) -> list[str]:
    why = facts.waiver.why_unmodified_cannot_run
    text = facts.waiver.zh.why if chinese and facts.waiver.zh is not None else why.text
    out = [prose(text), _switches(facts, words)]
    if why.evidence:
        out.append(words.evidence_given)
        out += [f"- <{one}>" if one.startswith("http") else _fenced(one) for one in why.evidence]
    for target in facts.targets:
        records = facts.evidence.get(target.name, Evidence()).about(target.base_digests)
        if records:
            out.append(words.base_runs.format(target=code(target.name)) + "\n\n" + _records(records, words))
        else:
            out.append(words.no_base_runs.format(target=code(target.name)))
    return out


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text.strip()}\n{fence}"


def _records(records: Sequence[TestRecord], words: Words) -> str:
    rows = [
        [
            code(record.check),
            words.results[record.result],
            ", ".join(code(str(digest)) for digest in sorted(record.subjects, key=str)),
            f"{code(record.file)} {code(str(record.digest))}",
        ]
        for record in sorted(records, key=lambda r: (r.check, r.file))
    ]
    return _table(words.record_columns, rows)


def _upstream(facts: WaiverFacts, words: Words) -> list[str]:
    states = {link.url: link.state for link in facts.waiver.upstream}
    for target in facts.targets:
        for item in target.items:
            for url in item.upstream:
                states.setdefault(url, None)
    lines = [f"- <{url}>" + (f" ({words.states[state]})" if state else "") for url, state in states.items()]
    without = sorted(
        {item.name for t in facts.targets for item in t.items if not facts.links_of(item) and item.kind != "pin"}
    )
    if without:
        lines.append(f"- {words.without_link}: {', '.join(code(name) for name in without)}")
    overlays = {o.name: o for t in facts.targets for o in t.overlays}
    for name, overlay in sorted(overlays.items()):
        status = code(overlay.upstream_status) if overlay.upstream_status else words.status_unknown
        lines.append(f"- {words.overlay} {code(name)}: {words.upstream_status} {status}")
    return ["\n".join(lines) or words.no_link]


def _accuracy(facts: WaiverFacts, words: Words) -> list[str]:
    out = []
    for target in facts.targets:
        asked = target.target.checks.gsm8k if target.target.checks is not None else None
        if asked is not None:
            out.append(words.gate.format(target=code(target.name), threshold=asked.threshold, margin=asked.margin))
        numerics = {o.name: o.numerics for o in target.overlays if o.numerics}
        out += [words.numerics.format(overlay=code(n), claim=code(c)) for n, c in sorted(numerics.items())]
        content = target.lock.result.content_id
        evidence = facts.evidence.get(target.name, Evidence())
        records = [r for r in evidence.records if r.check == "gsm8k" and r.of({*target.image_digests, content})]
        out.append(_records(records, words) if records else words.no_accuracy.format(content=code(str(content))))
    return out


def _removal(facts: WaiverFacts, words: Words, chinese: bool) -> list[str]:
    plan = facts.waiver.removal_plan
    text = facts.waiver.zh.removal_plan if chinese and facts.waiver.zh is not None else plan.condition
    overlays = sorted({f"overlays/{o.name}" for t in facts.targets for o in t.overlays})
    files = dict.fromkeys([*plan.delete, *overlays])
    lines = [f"- {code(name)}" for name in files]
    lines.append(f"- {words.waiver_goes.format(pages=', '.join(code(n) for n in own_files(facts.waiver.number)))}")
    out = [prose(text), words.then_deleted + "\n\n" + "\n".join(lines)]
    if plan.expires is not None:
        out.append(words.expires.format(date=code(plan.expires.isoformat())))
    return out


def own_files(number: int) -> tuple[str, ...]:
    return (f"{number}.yaml", page_name(number), page_name(number, chinese=True))


def _provenance(facts: WaiverFacts, words: Words) -> list[str]:
    lines = []
    for target in facts.targets:
        result = target.lock.result
        digests: list[tuple[str, Digest]] = [
            (words.lock, target.lock_digest),
            (words.content_id, result.content_id),
            (words.image_digest, result.digest),
            *((str(p.platform), p.manifest) for p in result.platforms),
        ]
        told = "; ".join(f"{name} {code(str(digest))}" for name, digest in digests)
        release = target.release
        signed = words.no_signature if release is None else words.signature.format(file=code(release))
        lines.append(f"{words.rendered_from} {code(target.name)}: {told}; {signed}")
    return lines
