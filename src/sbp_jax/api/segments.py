"""A placed program as segments: ops of one device that run as one jitted function, between values that are sent."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..planner.placing import Placeable, results_of, sources
from ..trace import Op, Program, Structured, Value


@dataclass(frozen=True, slots=True)
class Segment:
    """Parts of a program that run together on one device: the ids of the values they take of others and give them."""

    device: int
    steps: tuple[Op | Structured, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]


def segments(program: Program, parts: Placeable, device: Sequence[int], order: Sequence[int]) -> list[Segment]:
    """The segments in an order they can run in; each device runs its ops in the order given.

    A segment ends after an op that another device waits for, and before one that waits for another device: so no op
    waits longer than in the simulated run. What costs nothing to make is made in each segment that reads it.
    """
    number = {id(step): k for k, step in enumerate(program.graph.ops)}
    results = set(result_values(program, parts))
    found = []
    for ops in _runs(parts, device, order):
        steps = sorted((step for v in ops for step in parts.steps[v]), key=lambda x: number[id(x)])
        made = {v.id for step in steps for v in results_of(step)}
        takes = [i for i in sources((x for step in steps for x in step.reads), parts.makers) if i not in made]
        found.append((device[ops[0]], tuple(steps), tuple(takes), made))
    readers: dict[int, int] = {}
    for _, _, takes, _ in found:
        for i in takes:
            readers[i] = readers.get(i, 0) + 1
    return [
        Segment(d, steps, takes, tuple(sorted(i for i in made if i in results or i in readers)))
        for d, steps, takes, made in found
    ]


def result_values(program: Program, parts: Placeable) -> list[int]:
    """The ids of what the results are made of."""
    return sources((x for op in program.output_ops for x in op.ins if isinstance(x, Value)), parts.makers)


def _runs(parts: Placeable, device: Sequence[int], order: Sequence[int]) -> list[list[int]]:
    """Ops that run together, by the first of them."""
    graph = parts.graph
    sends = [any(device[r] != device[u] for r in after) for u, after in enumerate(graph.after)]
    runs: list[list[int]] = []
    now: dict[int, list[int]] = {}  # by device the run that goes on
    there: set[tuple[int, int]] = set()
    for v in order:
        d = device[v]
        sent = {(k, d) for k in graph.reads[v] if device[graph.tensors[k].maker] != d} - there
        there |= sent
        if sent or d not in now:
            now[d] = []
            runs.append(now[d])
        now[d].append(v)
        if sends[v]:
            del now[d]
    return runs
