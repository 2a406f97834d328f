"""Which stage of a pipeline runs which op of a step that is cut into micro-batches.

The forward ops are cut, in the order of the program, into consecutive stages. Every other op follows:

* a backward op runs where most of what it reads of the forward pass is, and not later in the model than what gives it
  its gradients. So a weight's gradient is made where the weight is used, and gradients pass the stages in reverse;
* an op after the micro-batches (the update) runs where the largest of its operands is, and the state with it;
* what runs once before them is made in every stage that needs it: schedules of rates, weights in another type.

Whatever the cut, the order F0, F1, ..., B1, B0 holds: an op reads nothing that is made after it. So every cut computes
the same; how well it does so is the planner's matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...errors import PlanError
from ...trace import Value
from ..microbatches.cut import Microbatches, Region
from ..microbatches.units import Unit, is_transposed, made_by


@dataclass(slots=True)
class Phases:
    """Where every op of a step runs.

    By number of the op (``Microbatches.units``): its ``stage``, -1 for what runs once in every stage that needs it;
    whether it is ``backward``; its ``level``: how many times the stages have exchanged results since the micro-batches,
    0 for all but ops after them. ``home`` is the stage that keeps an argument, by number; of what is not there every
    stage that needs it has a copy. ``made`` is the number of the op that makes a value, by id.
    """

    cut: Microbatches
    count: int
    stage: list[int]
    backward: list[bool]
    level: list[int]
    home: dict[int, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)


def backward_units(cut: Microbatches) -> list[bool]:
    """Whether an op of the loop belongs to the backward pass: JAX transposed it, or it reads what is of that pass."""
    values: set[int] = set()
    found: list[bool] = []
    for unit, region in zip(cut.units, cut.regions, strict=True):
        is_backward = region is Region.LOOP and (any(x.id in values for x in unit.reads) or is_transposed(unit))
        found.append(is_backward)
        if is_backward:
            values.update(v.id for v in made_by(unit))
    return found


def forward_units(cut: Microbatches, backward: Sequence[bool]) -> list[int]:
    """The numbers of the ops that are cut into stages, in order."""
    return [k for k, r in enumerate(cut.regions) if r is Region.LOOP and not backward[k]]


def assign(
    cut: Microbatches, stage_of: dict[int, int], count: int, backward: list[bool],
    alone: Sequence[tuple[int, int]] = (),
) -> Phases:  # fmt: skip
    """Where every op runs, given the ``stage_of`` each forward op, by number, of ``count`` stages.

    ``alone``: (argument, result that replaces it) of a state that each stage is to update by itself: sums of gradients
    that read nothing of the forward pass (of a bias that is added last in a stage) are then made where the argument is
    used, not where the gradient comes from.

    Raises ``PlanError`` for a forward op in an earlier stage than what it reads.
    """
    return _Assigner(cut, stage_of, count, backward).run(alone)


class _Assigner:
    def __init__(self, cut: Microbatches, stage_of: dict[int, int], count: int, backward: list[bool]) -> None:
        self.cut, self.count, self.backward = cut, count, backward
        self.units: Sequence[Unit] = cut.units
        self.stage = [stage_of.get(k, -1) for k in range(len(self.units))]
        self.level = [0] * len(self.units)
        self.made = {v.id: k for k, u in enumerate(self.units) for v in made_by(u)}
        self.numbers = {op.outs[0].id: i for i, op in enumerate(cut.program.input_ops)}
        self.behind = self._arguments_behind()
        self.available: dict[int, set[int]] = {}
        self.home: dict[int, int] = {}

    def _arguments_behind(self) -> dict[int, frozenset[int]]:
        """By value that is made once, or an argument: the arguments that it is made of."""
        found = {v: frozenset([i]) for v, i in self.numbers.items()}
        for unit, region in zip(self.units, self.cut.regions, strict=True):
            if region is Region.ONCE:
                of = frozenset().union(*(found.get(x.id, frozenset()) for x in unit.reads))
                found.update((v.id, of) for v in made_by(unit))
        return found

    def run(self, alone: Sequence[tuple[int, int]]) -> Phases:
        for k, region in enumerate(self.cut.regions):
            if region is Region.LOOP:
                if self.backward[k]:
                    self.stage[k] = self.backward_stage(k)
                else:
                    self.check_order(k)
                self.mark(self.units[k].reads, self.stage[k], not self.backward[k])
                self.mark(made_by(self.units[k]), self.stage[k], True)
        for i, o in alone:
            self.bring_home(i, o)
        for k, region in enumerate(self.cut.regions):
            if region is Region.AFTER:
                self.after(k)
        self.find_homes()
        return Phases(self.cut, self.count, self.stage, self.backward, self.level, self.home, self.made)

    def check_order(self, k: int) -> None:
        late = [x for x in self.units[k].reads if x.id in self.made and self.loop_stage(x) > self.stage[k]]
        if late:
            raise PlanError(
                f"stage {self.stage[k]} uses {late[0]}, which is made in stage {self.loop_stage(late[0])}: values flow "
                "from earlier stages to later ones. Give the op to a later stage, or what it reads to an earlier one"
            )

    def loop_stage(self, x: Value) -> int:
        k = self.made.get(x.id, -1)
        return self.stage[k] if k >= 0 and self.cut.regions[k] is Region.LOOP else -1

    def mark(self, values: Iterable[Value], stage: int, forward: bool) -> None:
        """Note that values, and the arguments that they are made of, are at a stage in the forward pass."""
        if forward:
            for x in values:
                self.available.setdefault(x.id, set()).add(stage)
                for i in self.behind.get(x.id, ()):
                    self.available.setdefault(self.cut.program.input_ops[i].outs[0].id, set()).add(stage)

    def backward_stage(self, k: int) -> int:
        reads = self.units[k].reads
        latest = min(
            [self.stage[m] for x in reads if (m := self.made.get(x.id, -1)) >= 0 and self.is_backward_loop(m)],
            default=self.count - 1,
        )
        score = [0] * (latest + 1)
        for x in reads:
            where = self.available.get(x.id)
            if where is None:  # of a value made once, where its arguments are
                of = [self.available.get(self.cut.program.input_ops[i].outs[0].id) for i in self.behind.get(x.id, ())]
                where = set().union(*(s for s in of if s))
            m = self.made.get(x.id, -1)
            if m >= 0 and self.is_backward_loop(m):
                continue
            for s in where:
                if s <= latest:
                    score[s] += x.size_bytes
        return max(range(latest + 1), key=lambda s: (score[s], s))

    def bring_home(self, argument: int, result: int) -> None:
        """Make the gradient of an argument where the forward pass reads it, if it is a sum of nothing but gradients."""
        x = self.cut.program.input_ops[argument].outs[0]
        where = self.available.get(x.id, set())
        if len(where) != 1:
            return
        (stage,) = where
        found: set[int] = set()
        queue = [v.id for v in self.cut.program.output_ops[result].ins if isinstance(v, Value)]
        while queue:
            k = self.made.get(queue.pop(), -1)
            if k < 0 or k in found:
                continue
            found.add(k)
            if self.cut.regions[k] is Region.AFTER:
                queue += [v.id for v in self.units[k].reads]
            elif self.cut.regions[k] is Region.LOOP and any(v.shape == x.shape for v in made_by(self.units[k])):
                self.move(k, stage)

    def move(self, k: int, stage: int) -> None:
        """Move a backward op, and those that only it needs, to an earlier stage, if they read nothing forward."""
        if self.stage[k] <= stage:
            return
        reads, makes = self.units[k].reads, {v.id for v in made_by(self.units[k])}
        makers = [self.made.get(v.id, -1) for v in reads]
        others = [j for j, u in enumerate(self.units) if self.cut.regions[j] is Region.LOOP and self.stage[j] != stage
                  and any(v.id in makes for v in u.reads)]  # fmt: skip
        if others or not all(m >= 0 and self.is_backward_loop(m) for m in makers):
            return
        self.stage[k] = stage
        for m in makers:
            if not any(v.id in {w.id for w in made_by(self.units[m])} and self.stage[j] != stage
                       for j, u in enumerate(self.units) for v in u.reads):  # fmt: skip
                self.move(m, stage)

    def is_backward_loop(self, k: int) -> bool:
        return self.backward[k] and self.cut.regions[k] is Region.LOOP

    def after(self, k: int) -> None:
        """The stage and level of an op after the micro-batches."""
        unit = self.units[k]
        best, stage = -1, 0
        for x in unit.reads:
            s = self.stage_of_value(x)
            if s is not None and x.size_bytes > best:
                best, stage = x.size_bytes, s
        self.stage[k] = stage
        for x in unit.reads:
            m = self.made.get(x.id, -1)
            if m >= 0 and self.cut.regions[m] is not Region.ONCE:
                self.level[k] = max(self.level[k], self.level[m] + (self.stage[m] != stage))

    def stage_of_value(self, x: Value) -> int | None:
        m = self.made.get(x.id, -1)
        if m >= 0 and self.cut.regions[m] is not Region.ONCE:
            return self.stage[m]
        if m < 0 and self.cut.home[x.id] is Region.LOOP:
            return None  # an argument's batch is anywhere
        where = [min(self.available[v]) for i in self.behind.get(x.id, ())
                 if (v := self.cut.program.input_ops[i].outs[0].id) in self.available]  # fmt: skip
        return min(where, default=None) if x.shape else None

    def find_homes(self) -> None:
        """Where the arguments are kept: what replaces one decides, else the first stage that uses it."""
        program = self.cut.program
        for i, o in program.donated:
            x = program.output_ops[o].ins[0]
            s = self.stage_of_value(x) if isinstance(x, Value) else None
            if s is not None:
                self.home[i] = s
        for i, op in enumerate(program.input_ops):
            where = self.available.get(op.outs[0].id)
            if i not in self.home and self.cut.home[op.outs[0].id] is Region.ONCE and where:
                self.home[i] = min(where)
