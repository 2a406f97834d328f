"""A step ready to be cut into stages: in micro-batches, its layers in groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import PlanError
from ...planner.graph.batch import examples
from ...planner.graph.clusters import factor_maps, free_values
from ...planner.graph.roles import roles
from ...rules import Factors
from ...trace import Program
from ..microbatches.cut import Microbatches, cut
from ..options import Pipeline
from .layer_loops import Grouped, Layered, find_layers, group_counts, in_groups
from .phases import backward_units, forward_units


@dataclass(slots=True)
class Case:
    """A step in micro-batches. ``forward``: the ops that are cut into stages, by number; ``returned``: arguments with
    the results that replace them, where nothing is donated; ``grouped``: where its layers are in groups, what it was
    made of."""

    parts: Microbatches
    factors: Sequence[Factors]
    backward: list[bool]
    forward: list[int]
    returned: list[tuple[int, int]]
    grouped: Grouped | None = None

    @property
    def program(self) -> Program:
        """The program that is cut."""
        return self.parts.program


@dataclass(slots=True)
class _Form:
    """A program to cut into micro-batches. ``data``: by number of an argument the dim that counts examples; ``dims``:
    the same by value id; ``free`` are values that cost nothing to make of scalars."""

    program: Program
    grouped: Grouped | None
    returned: list[tuple[int, int]]
    factors: Sequence[Factors]
    data: dict[int, int]
    dims: dict[int, int]
    free: set[int]


class Steps:
    """A step as it is written, and with its layers in any number of groups: what does not hang on micro-batches.

    ``returned`` pairs arguments with the results that are of their shapes and structure: where nothing is donated, they
    are taken for what the model is made of.
    """

    def __init__(self, program: Program, options: Pipeline, name: str, returned: Sequence[tuple[int, int]]) -> None:
        self.program, self.options, self.name = program, options, name
        self._forms = {1: _form(program, None, list(returned))}
        whole = self._forms[1]
        kept = {i for i, _ in program.donated or whole.returned}
        self.layered: Layered = find_layers(program, whole.factors, kept)
        self._cases: dict[int, Cases] = {}

    @property
    def counts(self) -> list[int]:
        """The numbers of micro-batches that may be chosen: divisors of the batch, each about twice the one before."""
        whole = self._forms[1]
        batch = math.gcd(*(whole.program.input_ops[k].outs[0].shape[d] for k, d in whole.data.items()))
        found = [1]
        found += [n for n in range(2, batch + 1) if batch % n == 0]
        kept: list[int] = []
        for n in found:
            if not kept or n >= 2 * kept[-1]:
                kept.append(n)
        return kept

    def cut_in(self, count: int) -> "Cases":
        """The step in so many micro-batches."""
        if count not in self._cases:
            self._cases[count] = Cases(self, count)
        return self._cases[count]

    def case(self, groups: int, count: int) -> Case:
        """The step with its layers in ``groups`` groups, in ``count`` micro-batches."""
        if groups not in self._forms:
            grouped = in_groups(self.layered, groups)
            self._forms[groups] = _form(grouped.program, grouped, _pieces_returned(grouped, self._forms[1].returned))
        form = self._forms[groups]
        if not form.data and count > 1:
            raise PlanError(
                f"microbatches={count}: no dimension of the arguments of {self.name} is known to count examples. "
                "Donate the training state (donate_argnums) and give it a batch, or take microbatches=1"
            )
        estimates = self.options.batch_statistics == "microbatch"
        parts = cut(form.program, form.factors, count, form.data, form.dims, form.free, estimates)
        backward = backward_units(parts)
        return Case(parts, form.factors, backward, forward_units(parts, backward), form.returned, form.grouped)


class Cases:
    """A step in ``count`` micro-batches, its layers in any number of groups."""

    def __init__(self, steps: Steps, count: int) -> None:
        self._steps, self.count, self.layered = steps, count, steps.layered
        self.whole = steps.case(1, count)
        self._known: dict[int, Case] = {1: self.whole}

    def for_stages(self, stages: int) -> Case:
        """The step with its layers in as many groups as so many stages take."""
        counts = group_counts(self.layered) if self.layered.length and stages > 1 else [1]
        even = [n for n in counts if n % stages == 0]
        fine = [n for n in counts if n >= 2 * stages]
        return self.in_groups((even or fine or counts[-1:])[0])

    def in_groups(self, groups: int) -> Case:
        """The step with its layers in ``groups`` groups."""
        if groups not in self._known:
            self._known[groups] = self._steps.case(groups, self.count)
        return self._known[groups]


def _form(program: Program, grouped: Grouped | None, returned: list[tuple[int, int]]) -> _Form:
    factors = factor_maps(program)
    found = roles(program if program.donated else replace(program, donated=returned), factors)
    batch = examples(program, factors, found)
    kept = {i for i, _ in program.donated}
    data = found.data or [i for i in range(len(program.input_ops) - len(program.constants)) if i not in kept]
    dims = {i: batch.dims[v.id] for i in data if (v := program.input_ops[i].outs[0]).id in batch.dims}
    return _Form(program, grouped, returned, factors, dims, batch.dims, free_values(program, factors, {}))


def _pieces_returned(grouped: Grouped, returned: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """By argument of the program in groups the result that replaces it, from those of the step."""
    at = {(p.of, p.group): o for o, p in enumerate(grouped.results)}
    pairs = dict(returned)
    pieces = [(k, (pairs.get(p.of, -1), p.group)) for k, p in enumerate(grouped.arguments)]
    return [(k, at[piece]) for k, piece in pieces if piece in at]
