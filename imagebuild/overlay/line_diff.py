"""Which lines two files share, found the same way by every Python.

Our own search rather than the standard library's: its junk heuristics and tie-breaking are not promised to stay, and a
recorded diff must not change with the interpreter.  Lines that occur once on both sides are matched first (patience diff),
what lies between them by the shortest edit script (E. Myers, "An O(ND) Difference Algorithm", 1986) as long as that is cheap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

_MAX_LINES = 6000
_MAX_EDITS = 400
_MAX_DEPTH = 64


def common_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs (index in `old`, index in `new`) of equal lines, rising in both; a good matching, not always the longest."""
    names: dict[bytes, int] = {}
    a = [names.setdefault(text, len(names)) for text in old]
    b = [names.setdefault(text, len(names)) for text in new]
    pairs: list[tuple[int, int]] = []
    todo = [(0, len(a), 0, len(b), 0)]
    while todo:
        a_low, a_high, b_low, b_high, depth = todo.pop()
        while a_low < a_high and b_low < b_high and a[a_low] == b[b_low]:
            pairs.append((a_low, b_low))
            a_low += 1
            b_low += 1
        while a_low < a_high and b_low < b_high and a[a_high - 1] == b[b_high - 1]:
            a_high -= 1
            b_high -= 1
            pairs.append((a_high, b_high))
        if a_low == a_high or b_low == b_high:
            continue
        anchors = _unique_common(a, a_low, a_high, b, b_low, b_high) if depth < _MAX_DEPTH else []
        if not anchors:
            if a_high - a_low + b_high - b_low <= _MAX_LINES:
                pairs += [(a_low + i, b_low + j) for i, j in _shortest(a[a_low:a_high], b[b_low:b_high])]
            continue
        pairs += anchors
        for (i, j), (k, m) in zip([(a_low - 1, b_low - 1), *anchors], [*anchors, (a_high, b_high)], strict=True):
            todo.append((i + 1, k, j + 1, m, depth + 1))
    pairs.sort()
    return pairs


def _unique_common(
    a: Sequence[int], a_low: int, a_high: int, b: Sequence[int], b_low: int, b_high: int
) -> list[tuple[int, int]]:
    """The longest rising run of lines that occur once in each of the two ranges."""
    in_a, in_b = Counter(a[a_low:a_high]), Counter(b[b_low:b_high])
    place = {a[i]: i for i in range(a_low, a_high) if in_a[a[i]] == 1}
    both = [(place[b[j]], j) for j in range(b_low, b_high) if in_b[b[j]] == 1 and b[j] in place]
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (i, _) in enumerate(both):
        at = bisect_left(tops, i)
        before.append(ends[at - 1] if at else -1)
        if at == len(tops):
            tops.append(i)
            ends.append(number)
        else:
            tops[at] = i
            ends[at] = number
    out: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        out.append(both[at])
        at = before[at]
    out.reverse()
    return out


def _shortest(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """Myers' greedy search; nothing in common where more than 400 edits would be needed."""
    size_a, size_b = len(a), len(b)
    reach = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(size_a + size_b, _MAX_EDITS) + 1):
        trail.append(dict(reach) if edits else {1: 0})
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            y = x - k
            while x < size_a and y < size_b and a[x] == b[y]:
                x += 1
                y += 1
            reach[k] = x
            if x >= size_a and y >= size_b:
                return _backtrack(trail, size_a, size_b)
    return []


def _backtrack(trail: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for edits in range(len(trail) - 1, -1, -1):
        reach = trail[edits]
        k = x - y
        if edits == 0:
            start_x, start_y = 0, 0
            middle_x = 0
        else:
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            start_k = k + 1 if down else k - 1
            start_x = reach[start_k]
            start_y = start_x - start_k
            middle_x = start_x if down else start_x + 1
        while x > middle_x:
            x -= 1
            y -= 1
            pairs.append((x, y))
        x, y = start_x, start_y
    pairs.reverse()
    return pairs
