"""The part of a report that shows what was changed: every kind of change, long files, and what is not at hand."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.overlay.patch_make import make_hunks
from imagebuild.release import report_diff
from imagebuild.release.report_diff import rows_of
from imagebuild.release.report_markup import code, element, escaped, link, table
from imagebuild.testing.small_engine import PACKAGE, SmallWorkspace, engine_base

MANY = """\
  - file: files/envs.py
    to: engine/envs.py
  - symlink: {path: engine/alias.py, to: envs.py}
  - delete: {path: engine/legacy.py}
  - env: {ENGINE_MODE: "<fast>"}
"""


def shown(space: SmallWorkspace, verb: Any) -> tuple[dict[str, Any], str]:
    done = verb("report", "tuned", "--json")
    assert done.code == 0, done.err
    return done.document, Path(done.document["file"]).read_text(encoding="utf-8")


def lock(space: SmallWorkspace, verb: Any, **target: Any) -> None:
    space.write_target(**target)
    done = verb("lock", "tuned")
    assert done.code == 0, done.err


def test_every_kind_of_change_has_its_place(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> None:
    space = in_workspace()
    space.write_overlay(changes=MANY, files={"files/envs.py": b"VARIABLES = {}\n"})
    lock(space, verb)
    _, text = shown(space, verb)
    words = report_page(text)
    assert "ENGINE_MODE" in words
    assert "<fast>" in words
    assert "a link to envs.py" in words
    assert "engine/legacy.py (deleted)" in words
    assert "engine/envs.py (changed)" in words


def report_page(text: str) -> str:
    """What a reader sees of the page."""
    import html

    return html.unescape(re.sub(r"<[^>]*>", "", text.partition("<body>")[2]))


def test_what_is_not_committed_is_said_to_be_missing(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> None:
    space = in_workspace()
    lock(space, verb, content="cache")
    _, here = shown(space, verb)
    assert "not-run: its lines" not in here
    shutil.rmtree(space.cache)
    document, text = shown(space, verb)
    assert "not-run: its lines are not shown, since" in text
    assert "is not among what is committed" in text
    missing = {one["what"] for one in document["unproven"] if one["kind"] == "bytes"}
    assert "engine/envs.py" in missing


def test_a_long_file_is_cut_with_a_count(
    in_workspace: Callable[..., SmallWorkspace], verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(50))
    changed = b"".join(b"LINE %d\n" % n if n % 2 else b"line %d\n" % n for n in range(50))
    base = engine_base(package={**PACKAGE, "engine/long.py": lines})
    space = in_workspace(base, "long")
    space.write_overlay(
        changes="  - file: files/new.py\n    to: engine/new.py\n  - file: files/long.py\n    to: engine/long.py\n",
        files={"files/new.py": lines, "files/long.py": changed},
    )
    lock(space, verb)
    monkeypatch.setattr(report_diff, "ROW_LIMIT", 20)
    _, text = shown(space, verb)
    assert text.count("30 more lines are not shown.") == 2


def test_platforms_that_differ_are_told_apart(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> None:
    space = in_workspace(platforms=("linux/amd64", "linux/arm64"))
    lock(space, verb)
    _, text = shown(space, verb)
    assert "linux/amd64: layer of changes" in text
    assert "linux/arm64: layer of changes" in text
    assert text.count('id="file-1"') == 1
    assert " on linux/amd64)" not in text


def test_lines_stand_beside_those_that_take_their_place() -> None:
    (hunk,) = make_hunks(b"a\nb\nc\nd\n", b"a\nB\nC\nx\nd")
    assert list(rows_of(hunk)) == [
        ((1, "a"), (1, "a")),
        ((2, "b"), (2, "B")),
        ((3, "c"), (3, "C")),
        ((4, "d"), (4, "x")),
        (None, (5, "d (no newline at the end)")),
    ]


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("<b>", "&lt;b&gt;"),
        ('"quoted"', "&quot;quoted&quot;"),
        ("a\x1b[31mb", "a\ufffd[31mb"),
        ("x\u202ey", "x\ufffdy"),
        ("\x00", "\ufffd"),
    ],
)
def test_text_from_outside_is_text(text: str, there: str) -> None:
    assert escaped(text) == there
    assert element("p", text).text == f"<p>{there}</p>"
    assert f'title="{there}"' in element("p", title=text).text


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", " https://x", "//x"]
)
def test_only_web_addresses_become_links(address: str) -> None:
    assert "href" not in link(address).text


def test_a_web_address_becomes_a_link_without_a_referrer() -> None:
    made = link('https://example.com/"onmouseover="x').text
    assert made.startswith('<a href="https://example.com/&quot;onmouseover=&quot;x" rel="noreferrer noopener">')


def test_a_table_has_caption_and_scopes() -> None:
    made = table(code("c"), ["A", "B"], [["a", "b"]]).text
    assert '<caption><code class="short">c</code></caption>' in made
    assert '<th scope="col">A</th>' in made
    assert '<th scope="row">a</th><td>b</td>' in made
    assert 'role="region" aria-label="c" tabindex="0"' in made
