"""The first text of waivers/N.yaml: what the overlays say already, and `<…>` where a person must write."""

from __future__ import annotations

from imagebuild.content.strict_yaml import quoted
from imagebuild.target.workspace import Workspace
from imagebuild.waiver.facts import upstream_of


def start_waiver(workspace: Workspace, number: int, targets: tuple[str, ...]) -> str:
    """The file's text.  `waiver check` refuses it as long as a mark stands in it.  Raises what loading targets and
    overlays raises."""
    overlays = {o.name: o for name in targets for o in workspace.series(workspace.target(name))}
    links = dict.fromkeys(url for overlay in overlays.values() for url in upstream_of(overlay))
    conditions = list(dict.fromkeys(" ".join(o.remove_when.split()) for o in overlays.values() if o.remove_when))
    first = next((o.description.splitlines()[0] for o in overlays.values()), "<what the patch does, in one line>")
    lines = [
        "schema: 1",
        f"number: {number}",
        f"title: {quoted(first)}",
        f"targets: [{', '.join(targets)}]",
        'configs: ["<the benchmark\'s configuration keys>"]',
        "patched: auto",
        "why_unmodified_cannot_run:",
        '  text: "<what fails without the patch; a performance gain is no reason>"',
        "  evidence: []",
        "upstream:" + (" []" if not links else ""),
        *(f"  - {{url: {quoted(url)}}}" for url in links),
        "removal_plan:",
        f"  condition: {quoted('; '.join(conditions) or '<what must happen upstream>')}",
        f"  delete: [{', '.join(quoted('overlays/' + name) for name in overlays)}]",
        "  # expires: YYYY-MM-DD",
        "zh:",
        '  title: "<标题>"',
        '  why: "<未修改的镜像为何无法运行>"',
        '  removal_plan: "<何时移除>"',
    ]
    return "\n".join(lines) + "\n"
