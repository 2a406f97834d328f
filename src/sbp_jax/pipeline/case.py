"""A step ready to be cut into stages: in micro-batches, its layers in groups."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import PlanError
from ..planner.graph.batch import examples
from ..planner.graph.clusters import factor_maps, free_values
from ..planner.graph.roles import roles
from ..rules import Factors
from ..trace import Program
from .layers import Grouped, Layered, find_layers, group_counts, in_groups
from .microbatches import Microbatches, cut
from .options import Pipeline
from .phases import backward_units, forward_units


@dataclass(slots=True)
class Case:
    """A step in micro-batches. ``forward``: the ops that are cut into stages, by number; ``grouped``: where its layers
    are in groups, what it was made of."""

    parts: Microbatches
    factors: Sequence[Factors]
    backward: list[bool]
    forward: list[int]
    grouped: Grouped | None = None

    @property
    def program(self) -> Program:
        """The program that is cut."""
        return self.parts.program


class Cases:
    """A step, with its layers in any number of groups.

    ``returned`` pairs arguments with the results that are of their shapes and structure: where nothing is donated, they
    are taken for what the model is made of.
    """

    def __init__(self, program: Program, options: Pipeline, name: str, returned: Sequence[tuple[int, int]]) -> None:
        self.options, self.name = options, name
        self.returned = list(returned)
        self.whole = self._ready(program, None)
        kept = {i for i, _ in program.donated or self.returned}
        self.layered: Layered = find_layers(program, self.whole.factors, kept)
        self._known: dict[int, Case] = {1: self.whole}

    def for_stages(self, stages: int) -> Case:
        """The step with its layers in as many groups as so many stages take."""
        counts = group_counts(self.layered) if self.layered.length and stages > 1 else [1]
        even = [n for n in counts if n % stages == 0]
        fine = [n for n in counts if n >= 2 * stages]
        return self.in_groups((even or fine or counts[-1:])[0])

    def in_groups(self, count: int) -> Case:
        """The step with its layers in ``count`` groups."""
        if count not in self._known:
            grouped = in_groups(self.layered, count)
            self._known[count] = self._ready(grouped.program, grouped)
        return self._known[count]

    def _ready(self, program: Program, grouped: Grouped | None) -> Case:
        returned = self.returned
        if grouped is not None:
            at = {(p.of, p.group): o for o, p in enumerate(grouped.results)}
            pairs = dict(returned)
            pieces = [(k, (pairs.get(p.of, -1), p.group)) for k, p in enumerate(grouped.arguments)]
            returned = [(k, at[piece]) for k, piece in pieces if piece in at]
        factors = factor_maps(program)
        parts = _cut(program, factors, self.options, self.name, returned)
        backward = backward_units(parts)
        return Case(parts, factors, backward, forward_units(parts, backward), grouped)


def _cut(
    program: Program, factors: Sequence[Factors], options: Pipeline, name: str, returned: Sequence[tuple[int, int]]
) -> Microbatches:
    found = roles(program if program.donated else replace(program, donated=list(returned)), factors)
    batch = examples(program, factors, found)
    kept = {i for i, _ in program.donated}
    data = found.data or [i for i in range(len(program.input_ops) - len(program.constants)) if i not in kept]
    dims = {i: batch.dims[v.id] for i in data if (v := program.input_ops[i].outs[0]).id in batch.dims}
    if not dims and options.microbatches > 1:
        raise PlanError(
            f"microbatches={options.microbatches}: no dimension of the arguments of {name} is known to count examples. "
            "Donate the training state (donate_argnums) and give it a batch, or take microbatches=1"
        )
    estimates = options.batch_statistics == "microbatch"
    free = free_values(program, factors, {})
    return cut(program, factors, options.microbatches, dims, batch.dims, free, estimates)
