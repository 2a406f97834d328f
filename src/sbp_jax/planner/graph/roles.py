"""What each argument of a training step is: parameter, optimizer state, data; and where gradients meet parameters.

Found by structure alone, never by name. Donated arguments are what a step keeps; of these

* a *parameter* meets data in the model: followed through ops that read no data, it arrives at an op that mixes it with
  data in another shape than its own (a contraction, a lookup, a broadcast), and the loss depends on it;
* *optimizer state* meets data at its own shape only, element by element, on the way to a parameter's new value
  (moments), or is made from a parameter (an average of weights);
* a *buffer* is kept, but no parameter's update reads it (running statistics, counters, keys).

Where nothing is donated, as in a loss and its gradients, what is pinned whole on every device is a parameter.
Norms of parameters and moments (clipping, LARS, LAMB) are reductions to a scalar and tell nothing; they are not
followed. A *gradient* is what reaches a parameter's update from data: the update is followed back from the new value,
element by element, to where the shape or the kind of op changes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...rules import Factors
from ...rules.base import is_a
from ...trace import Op, Program, Value
from .fusion import pointwise


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of ``parameter`` (a position among the arguments): a value, and the ops of the update reading it."""

    parameter: int
    value: Value
    readers: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions among the program's arguments by role. ``states`` maps optimizer state to the parameter it is for;
    None: it has another shape (row and column statistics, say). Scalars have no role but ``buffers`` where donated."""

    parameters: tuple[int, ...] = ()
    states: dict[int, int | None] = field(default_factory=dict)
    buffers: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    gradients: tuple[Gradient, ...] = ()
    by_pins: bool = False
    """Whether pins say which arguments are state, scalars among them."""

    @property
    def known(self) -> bool:
        """Whether anything is known to be kept between steps: donated arguments, or those that are pinned whole."""
        return bool(self.parameters or self.states or self.by_pins)


def roles(program: Program, factors: Sequence[Factors], whole: Collection[int] = ()) -> Roles:
    """The roles of a program's arguments; ``factors`` are its nodes' rules, in order.

    ``whole`` are the nodes that users pinned to be whole on every device. Where nothing is donated (a loss, its
    gradients) the arguments among them are the parameters.
    """
    finder = _Finder(program, factors)
    found = finder.run()
    return found if found.known else finder.pinned(whole)


class _Finder:
    def __init__(self, program: Program, factors: Sequence[Factors]) -> None:
        self.program = program
        self.consumers = program.consumers()
        self.producer = {v.id: op for op in program.nodes for v in op.outs}
        self.pointwise = pointwise(program, factors)
        self.kept = dict(program.donated)
        n = len(program.input_ops) - len(program.constants)
        self.arrays = [i for i in range(n) if program.input_ops[i].outs[0].shape]
        self.positions = {op.outs[0].id: k for k, op in enumerate(program.input_ops)}
        self.fed = self._fed()

    def run(self) -> Roles:
        data = tuple(i for i in self.arrays if i not in self.kept)
        kept = [i for i in self.arrays if i in self.kept and is_a(self._input(i).dtype, np.inexact)]
        candidates = [i for i in kept if self._meets_data(i)]
        wanted = self._behind_results()
        parameters = [i for i in candidates if self._input(i).id in wanted] or candidates
        states: dict[int, int | None] = {}
        gradients: list[Gradient] = []
        upstream: set[int] = set()
        for i in parameters:
            inputs, frontier, seen = self._update(i)
            states.update((j, i) for j in inputs if j != i and j in self.kept and j not in parameters)
            gradients += [Gradient(i, v, readers) for v, readers in frontier]
            upstream |= seen
        behind = self._behind([self.producer[i] for i in upstream if i in self.producer])
        for i in kept:
            if i not in states and i not in parameters:
                own = self._update(i)[0]
                source = next((j for j in own if j in parameters), None)
                shaped = self._input(i)
                if source is not None and self._input(source).shape == shaped.shape:
                    states[i] = source
                elif shaped.id in behind and self._input(i).id not in wanted:
                    states[i] = None
        rest = tuple(i for i in self.kept if i not in parameters and i not in states)
        return Roles(tuple(parameters), states, rest, data, tuple(gradients))

    def pinned(self, whole: Collection[int]) -> Roles:
        """Roles by where the arguments are pinned: what is whole everywhere is no data."""
        same = [i for i in self.arrays if self.program.input_ops[i].index in whole]
        parameters = tuple(i for i in same if is_a(self._input(i).dtype, np.inexact))
        buffers = tuple(i for i in same if i not in parameters)
        data = tuple(i for i in self.arrays if i not in same)
        return Roles(parameters, {}, buffers, data, by_pins=any(op.index in whole for op in self.program.input_ops))

    def _input(self, i: int) -> Value:
        return self.program.input_ops[i].outs[0]

    def _fed(self) -> set[int]:
        """Ids of values that depend on data. What a loop carries starts as its initial value does: a loop over
        training steps carries parameters, which are no data for having been updated."""
        found = {self._input(i).id for i in range(len(self.program.input_ops) - len(self.program.constants))
                 if i not in self.kept and self._input(i).shape}  # fmt: skip
        every = self.program.reads()
        changed = True
        while changed:
            changed = False
            for op, reads in zip(self.program.nodes, every, strict=True):
                is_fed = not found.isdisjoint(reads)
                for k, v in enumerate(op.outs) if is_fed else ():
                    if v.id in found:
                        continue
                    first = op.ins[0]
                    if op.name == "sbp.carry" and k != 1 and not (isinstance(first, Value) and first.id in found):
                        continue
                    found.add(v.id)
                    changed = True
        return found

    def _meets_data(self, i: int) -> bool:
        """Whether an argument is mixed with data in another shape than its own."""
        start = self._input(i)
        queue = [(start, False)]
        seen = {(start.id, False)}
        while queue:
            v, changed = queue.pop()
            for op, _ in self.consumers.get(v.id, ()):
                if op.primitive is None and op.name != "sbp.pin":
                    # Boundaries of loops only hand on; a slice of stacked layers is a layer's own shape.
                    following = [(out, changed) for out in op.outs if out.id not in self.fed]
                else:
                    own = self.pointwise[op.index] and all(out.shape == v.shape for out in op.outs)
                    own |= op.name == "sbp.pin"
                    if any(isinstance(x, Value) and x.id in self.fed for x in op.ins):
                        if changed or not own:
                            return True
                        continue
                    if op.name.startswith("reduce_"):
                        continue
                    following = [(out, changed or not own) for out in op.outs if out.shape]
                for item in following:
                    key = (item[0].id, item[1])
                    if key not in seen:
                        seen.add(key)
                        queue.append(item)
        return False

    def _behind_results(self) -> set[int]:
        """Ids of values that a result depends on which replaces no argument: the loss, metrics."""
        replaced = set(self.kept.values())
        return self._behind([op for k, op in enumerate(self.program.output_ops) if k not in replaced])

    def _behind(self, start: list[Op]) -> set[int]:
        found: set[int] = set()
        reads, producer = self.program.reads(), self.producer
        queue = [op.index for op in start]
        while queue:
            for i in reads[queue.pop()]:
                if i not in found:
                    found.add(i)
                    queue.append(producer[i].index)
        return found

    def _update(self, i: int) -> tuple[set[int], list[tuple[Value, tuple[Op, ...]]], set[int]]:
        """The update of an argument, followed back from its replacement at its own shape: the arguments it reads, the
        values that come from data with the ops that read them, and all values seen."""
        position, shape = self.positions, self._input(i).shape
        output = self.program.output_ops[self.kept[i]]
        inputs: set[int] = set()
        frontier: dict[int, tuple[Value, list[Op]]] = {}
        seen: set[int] = set()
        queue = [(x, output) for x in output.ins if isinstance(x, Value)]
        while queue:
            v, reader = queue.pop()
            before = list(self._before(v, shape))
            if v.id in position:
                inputs.add(position[v.id])
            elif not before and v.id in self.fed:
                frontier.setdefault(v.id, (v, []))[1].append(reader)
            if v.id not in seen:
                seen.add(v.id)
                queue += [(x, self.producer[v.id]) for x in before]
        return inputs, [(v, tuple(dict.fromkeys(readers))) for v, readers in frontier.values()], seen

    def _before(self, v: Value, shape: tuple[int, ...]) -> Iterator[Value]:
        """The values of a shape that ``v`` is made from element by element."""
        op = self.producer[v.id]
        if op.name == "sbp.carry":
            # Carried from an argument on, it is that argument at another step; otherwise a sum over steps: an end.
            first, last = op.ins
            if isinstance(first, Value) and self.producer[first.id].name in ("sbp.input", "sbp.enter"):
                x = last if len(op.outs) > 1 and v is op.outs[1] else first
                if isinstance(x, Value):
                    yield x
        elif self.pointwise[op.index] or op.name in ("sbp.pin", "sbp.barrier"):
            yield from (x for x in op.ins if isinstance(x, Value) and x.shape == shape)
