"""A stage's parts where weights are updated between micro-batches: the update, apart from what is reported.

The part after the loop is cut once more. The *update* is what the new state depends on; it runs on the sums of a group
of micro-batches, each taken times the number of groups: what the sum would be, were all groups like this one. So it is
the step's own update of a batch that is copies of the group. What is *reported* besides (losses, metrics) is made once,
at the end of the step, of all sums; what it shares with the update it makes anew of them, but for the new state itself.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..._compat import scan_operands
from ...plan import PlanData
from ...rules.widen import PARTIAL
from ...shardings import to_partition_spec
from ..cuts.phases import Phases
from ..microbatches.cut import Region
from .cutting import Part, cut, is_literal
from .slots import Result, Slot, StageParts, UpdateParts
from .stage_parts import Maker
from .stage_program import StageProgram

# The "level" of an update, and of what sums begin with.
_UPDATE, _START = -2, -3


class UpdateMaker(Maker):
    """Makes the parts of a stage that updates its state ``count`` times in a step.

    ``state`` is by argument of the step the result that replaces it.
    """

    def __init__(self, *args: Any, state: Mapping[int, int], count: int) -> None:
        super().__init__(*args)
        self.count = count
        given = {p.key: o for o, p in enumerate(self.source.gives) if p.kind == "result"}
        takes = enumerate(self.source.takes)
        self.replaced = {i: given[state[p.key]] for i, p in takes
                         if p.kind == "argument" and p.key in state and state[p.key] in given}  # fmt: skip
        self.given = {given[o] for o in state.values() if o in given}
        program = self.phases.cut.program
        values = [program.output_ops[o].ins[0] for o in state.values()]
        made = [self.phases.made.get(getattr(x, "id", -1), -1) for x in values]
        self.makers = {k for k in made if k >= 0 and self.cut.regions[k] is Region.AFTER}

    def make(self) -> StageParts:
        """Its parts."""
        parts = super().make()
        update = self.part("update", self.update, self.after_sources, _UPDATE)
        start = None if self.loop is None else self.part("start", self.start, {}, _START)
        return replace(parts, updates=UpdateParts(update, start, self.replaced, self.count))

    def cut_top(self) -> None:
        """As without updates; then what the new state depends on, and what is reported, apart."""
        # What the lowering lets ops wait for each other with would make the update depend on what is reported.
        equations, self.out_vars = _without_barriers(self.local.jaxpr.eqns, self.out_vars)
        self.local = replace(self.local, jaxpr=self.local.jaxpr.replace(eqns=equations))
        super().cut_top()
        levels = {id(e): k for k, p in enumerate(self.top[2:]) for e in p.equations}
        after = [e for e in self.local.jaxpr.eqns if id(e) in levels]
        state = [self.out_vars[o] for o in sorted(self.given)]
        updating = _behind(after, state)
        ids = {id(e) for e in updating}
        reported = [v for o, v in enumerate(self.out_vars) if self.is_reported(o) and not is_literal(v)]
        wanted, told, kept = set(reported), list[Any](), dict[Any, None]()
        for e in reversed(after):
            read = [v for v in e.outvars if v in wanted]
            if read and id(e) in ids and self.unit_of.get(self.node(e), -1) in self.makers:
                kept.update(dict.fromkeys(read))
            elif read or (e.effects and id(e) not in ids):
                told.append(e)
                wanted.update(_variables(e.invars))
        told.reverse()
        self.kept = list(kept)
        inside = {v for e in updating for v in e.outvars}
        gives = [v for v in dict.fromkeys(_variables([*state, *self.kept])) if v in inside]
        self.update = Part(tuple(updating), _read(updating, inside), tuple(gives))
        reports = cut(told, [levels[id(e)] for e in told], len(self.top) - 2, reported, remakes=False)
        before, loop = self.top[:2]
        made = {v for e in before.equations for v in e.outvars}
        starts: Sequence[Any] = []
        read = {*self.update.takes, *(v for p in reports for v in p.takes), *reported, *_variables(state)}
        if self.loop_eqn is not None:
            n, carried = scan_operands(self.loop_eqn.params)
            starts = self.loop_eqn.invars[n : n + carried]
            read.update(_variables(self.loop_eqn.invars[:n]))
        self.top = [_part(before.equations, read & made), loop, *reports]
        self.start = _part(before.equations, made.intersection(_variables(starts)))

    def readers(self) -> list[Part]:
        """The parts that read what the loop collects."""
        return [*self.top[2:], self.update]

    def is_reported(self, o: int) -> bool:
        """Whether a result is made at the end of the step."""
        return super().is_reported(o) and o not in self.given

    def results(self, name: str, part: Part, in_loop: bool, level: int) -> list[Result]:
        """What a part gives."""
        if name == "before":
            return [r for r in super().results(name, part, in_loop, level) if r.slot.kind == "held"]
        if name == "start":
            return [r for r in super().results("before", part, in_loop, level) if r.slot.kind == "sum"]
        if name != "update":
            return super().results(name, part, in_loop, level)
        found = []
        for o in sorted(self.given):
            leaf = self.plan.outputs[o]
            spec = to_partition_spec(leaf.signature, self.where, len(leaf.shape))
            found.append(Result(Slot("port", o), self.out_vars[o], spec, lambda x: x))
        own = PartitionSpec(self.where.axis_names)
        return found + [Result(Slot("held", v), v, own, lambda x: jnp.asarray(x)[None]) for v in self.kept]

    def operand(self, slot: Slot, x: Any, level: int) -> Any:
        """What a device reads of an argument of a part; a sum as if all groups of micro-batches were like this one."""
        found = super().operand(slot, x, level)
        is_sum = slot.kind == "sum" and level == _UPDATE and self.source.sums[slot.key] == PARTIAL["sum"]
        return found * self.count if is_sum else found

    def is_spent(self, slot: Slot, v: Any, gives: Sequence[Slot], level: int) -> bool:
        """An update may write over state that nothing else of the stage reads: an optimizer's, not the weights."""
        if level == -1:
            return super().is_spent(slot, v, gives, level)
        if level != _UPDATE or slot.kind != "port":
            return False
        others = [*self.top, *([] if self.loop is None else [self.start])]
        read = any(v in p.takes for p in others) or (self.loop_eqn is not None and v in self.loop_eqn.invars)
        donated = {i for i, _ in self.source.program.donated}
        reported = any(self.is_reported(o) and x is v for o, x in enumerate(self.out_vars))
        return not read and not reported and slot.key in donated and self.owns(slot.key)


def _without_barriers(equations: Sequence[Any], results: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Equations and results that read what optimization barriers are given, in place of what they hand on."""
    given: dict[Any, Any] = {}

    def read(v: Any) -> Any:
        return v if is_literal(v) else given.get(v, v)

    found = []
    for e in equations:
        if e.primitive.name == "optimization_barrier":
            given.update(zip(e.outvars, map(read, e.invars), strict=True))
        else:
            found.append(e.replace(invars=[read(v) for v in e.invars]))
    return found, [read(v) for v in results]


def _behind(equations: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """The equations that variables depend on."""
    needed = set(_variables(wanted))
    found = []
    for e in reversed(equations):
        if any(v in needed for v in e.outvars):
            found.append(e)
            needed.update(_variables(e.invars))
    return found[::-1]


def _part(equations: Sequence[Any], gives: Set[Any]) -> Part:
    """What gives variables, of some equations that depend on no other part."""
    chosen = _behind(equations, list(gives))
    made = dict.fromkeys(v for e in chosen for v in e.outvars)
    return Part(tuple(chosen), _read(chosen, made.keys()), tuple(v for v in made if v in gives))


def _variables(operands: Sequence[Any]) -> list[Any]:
    """All that are no literals, which cannot be counted as the same."""
    return [v for v in operands if not is_literal(v)]


def _read(equations: Sequence[Any], inside: Set[Any]) -> tuple[Any, ...]:
    """The variables that equations read of others."""
    return tuple(dict.fromkeys(v for e in equations for v in e.invars if not is_literal(v) and v not in inside))


def update_parts(
    phases: Phases, source: StageProgram, plan: PlanData, shared: Set[int], state: Mapping[int, int], count: int,
    compiler_options: Mapping[str, Any] | None = None,
) -> StageParts:  # fmt: skip
    """Lower and cut a stage that updates its state ``count`` times in a step; see ``stage_parts``, ``UpdateMaker``."""
    options, mesh = dict(compiler_options or {}), plan.placement.mesh
    return UpdateMaker(phases, source, plan, False, shared, options, mesh, state=state, count=count).make()
