"""Repeated layers, found by structure alone: cells that look alike and are wired alike share one decision.

Colour refinement (Weisfeiler and Leman, 1968) on the graph of cells: a cell's colour is what it computes, then
again and again what it computes together with its neighbours' colours. Left to itself the refinement would tell
every layer of a stack from the next by its distance to the ends. So after a few rounds a cell that would be left
alone, or nearly, where a large group stays together, is kept with that group: the ends of a stack are planned
like its middle. Sharing a decision is a restriction of the program, never a wrong plan.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from .cells import Cell

_STRICT_ROUNDS = 2
_ROUNDS = 12
_MAJORITY = 2


def classes(cells: Sequence[Cell], free: set[int]) -> list[int]:
    """A class number for each cell, numbered by first appearance."""
    producer = {v.id: (c.index, k) for c in cells for k, v in enumerate(c.outs)}
    before: list[list[tuple[int, int, int]]] = []
    after: list[list[tuple[int, int, int]]] = [[] for _ in cells]
    for cell in cells:
        edges = [(k, *producer[v.id]) for k, v in enumerate(cell.ins) if v.id in producer]
        before.append(edges)
        for k, source, result in edges:
            if cells[source].outs[result].shape != ():
                after[source].append((k, cell.index, result))
    colour = _number([cell.label for cell in cells])
    count = max(colour, default=-1) + 1
    for round_number in range(_ROUNDS):
        marks = [
            (
                colour[i],
                tuple((k, r, colour[s]) for k, s, r in before[i]),
                tuple(sorted({(k, r, colour[t]) for k, t, r in after[i]})),
            )
            for i in range(len(cells))
        ]
        refined = _number(marks)
        if round_number >= _STRICT_ROUNDS:
            refined = _number(_keep_together(colour, refined))
        new_count = max(refined, default=-1) + 1
        if new_count == count:
            break
        colour, count = refined, new_count
    return colour


def _keep_together(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Stragglers go back to their group's largest part, where that is at least twice as large."""
    sizes = Counter(new)
    parts: dict[int, set[int]] = defaultdict(set)
    for a, b in zip(old, new, strict=True):
        parts[a].add(b)
    home = {a: max(bs, key=lambda b: (sizes[b], -b)) for a, bs in parts.items()}
    return [home[a] if sizes[b] * _MAJORITY <= sizes[home[a]] else b for a, b in zip(old, new, strict=True)]


def _number(keys: Sequence[object]) -> list[int]:
    seen: dict[object, int] = {}
    return [seen.setdefault(k, len(seen)) for k in keys]
