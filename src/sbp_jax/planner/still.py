"""The plan that moves nothing, where there is one.

Where only movement costs (eager ops), a choice in which every value is made as all its readers want it costs zero,
and nothing costs less: it needs no search. Most eager ops are such.
"""

from collections.abc import Sequence

from ..rules.widen import B, Code, Strategy
from .cells import Cell


def still(cells: Sequence[Cell]) -> list[int] | None:
    """A strategy for each cell such that no value changes its signature, found by following the operands; or None."""
    codes: dict[int, Code] = {}
    choice: list[int] = []
    for cell in cells:
        best: tuple[int, int] | None = None
        for k, way in enumerate(cell.strategies):
            if all(codes.get(v.id) == c for v, c in zip(cell.ins, way.ins, strict=True)):
                changed = _not_whole(way)
                if best is None or changed < best[0]:
                    best = changed, k
        if best is None:
            return None
        choice.append(best[1])
        codes.update((v.id, c) for v, c in zip(cell.outs, cell.strategies[best[1]].outs, strict=True))
    return choice


def _not_whole(way: Strategy) -> int:
    """Of ways with the same operands, the one whose results are whole is nobody's surprise."""
    return sum(c != B for code in way.outs for c in code)
