"""Which dimension of every value counts examples: the batch, followed through the whole step.

Dimensions that an op's factor map gives the same factor are one: the batch of the images is that of every activation
made of them, of the labels, and of the gradients of activations. So all dimensions of a program fall into classes. A
class that a parameter or its optimizer state has a dimension of counts features, not examples. Of the others the batch
is the one that most of the work runs along, and that nothing stands in the way of: no op needs it whole (a convolution
the height, a loop what it runs over), and no value has it twice (attention's scores have the sequence twice). Sums over
it are all right: gradients, losses, statistics. Of several alike it is the one that most arguments have; of those the
leading one.

Where no class is so clean (a contrastive loss compares all examples with all), it is the leading dimension of an
argument that most of the work runs along. What is cut out of a dimension, or made of several (micro-batches, all
positions of all sequences), counts examples too; so do the batches of arguments that never meet the first one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...rules import Factors
from ...rules.base import size
from ...trace import Program, Value
from .dim_classes import DimClasses
from .roles import Roles

# What stands in the way of a batch is at most this part of the work along it.
_CLEAN = 1e-3
# A batch has at least this part of the work that any other class has, and those with so much are alike.
_LEAST = 0.25
_ALIKE = 0.9
# What multiplies activations with a matrix.
_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}

# By class of dims.
Work = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Examples:
    """By value id: the dim that counts examples; of values that have one, the dims that data have.

    ``weights``: the values that are parameters, or made of one parameter alone, and are multiplied with activations.
    """

    dims: dict[int, int] = field(default_factory=dict)
    of_data: dict[int, tuple[int, ...]] = field(default_factory=dict)
    weights: frozenset[int] = frozenset()


def examples(program: Program, factors: Sequence[Factors], found: Roles) -> Examples:
    """The batch dimension of every value of a step that has one; ``factors`` are its nodes' rules, in order."""
    return _Finder(program, factors, found).run()


class _Finder(DimClasses):
    def __init__(self, program: Program, factors: Sequence[Factors], found: Roles) -> None:
        super().__init__(program, factors)
        self.program, self.factors = program, factors
        self.data = [program.input_ops[i].outs[0] for i in found.data]
        self.parameters = [program.input_ops[i].outs[0] for i in found.parameters]
        self.states = [program.input_ops[i].outs[0] for i in found.states]
        self._join_along_constants(self.shared)

    def _join_along_constants(self, shared: set[int]) -> None:
        """Join what reads one constant along the same dim, but for features: its shape may be theirs by chance."""
        features = np.isin(self.label, list(self.features()))
        consumers = self.program.consumers()
        readers = sorted({op.index for v in shared for op, _ in consumers[v]})
        pairs = [np.zeros((0, 2), np.int64)]
        for a in self.group(((self.program.nodes[k], self.factors[k]) for k in readers), ()):
            for f in a.factors:
                if len(f.dims) > 1:
                    dims = np.stack([a.dims(d) for d in f.dims], axis=1)
                    plain = ~features[dims]
                    first = dims[np.arange(len(dims)), plain.argmax(axis=1)]
                    pairs.append(np.stack([np.broadcast_to(first[:, None], dims.shape)[plain], dims[plain]], axis=1))
        self.join(np.concatenate(pairs))

    def run(self) -> Examples:
        features = self.features()
        touched, hindered = self.work()
        touched = {c: n for c, n in touched.items() if c not in features}
        chosen = self.choose(touched, hindered)
        self.add_parts(chosen, features, touched, hindered)
        self.add_others(chosen, touched, hindered)
        # Arguments without examples are settings, or weights that are not trained.
        counted = [
            found for v in self.data if (found := {c for _, c in self.classes_of(v)}) & set(chosen) or not chosen
        ]
        of_data = set(chosen).union(*counted)
        dims: dict[int, int] = {}
        for c in reversed(chosen):  # the first one chosen counts, and of its dims the first
            dims.update((v.id, d) for v, d in reversed(self._dims_in({c})))
        data_dims: dict[int, tuple[int, ...]] = {}
        for v, d in self._dims_in(of_data):
            # What has no examples, the state and its updates, may share features with data.
            if v.id in dims or not chosen:
                data_dims[v.id] = (*data_dims.get(v.id, ()), d)
        return Examples(dims, data_dims, self.weights())

    def _dims_in(self, some: Collection[int]) -> list[tuple[Value, int]]:
        """The dims of classes, with their values."""
        at = np.flatnonzero(self.is_long & np.isin(self.label, list(some)))
        return [(v := self.values[k], i - self.start[v.id]) for i, k in
                zip(at.tolist(), self.value_of[at].tolist(), strict=True)]  # fmt: skip

    def weights(self) -> frozenset[int]:
        """Values made of one parameter, on the way to a product with something else."""
        consumers = self.program.consumers()
        found: set[int] = set()
        for parameter in self.parameters:
            queue, seen, is_matrix = [parameter], {parameter.id}, False
            for v in queue:
                for op, _ in consumers.get(v.id, ()):
                    if op.name in _PRODUCTS:
                        is_matrix = True
                    elif op.name not in ("sbp.output", "sbp.carry") and all(x.id in seen for x in op.reads):
                        queue += [out for out in op.outs if out.id not in seen]
                        seen.update(out.id for out in op.outs)
            if is_matrix:
                found |= seen
        flat = {v.id for v in self.values if len(v.shape) < 2}
        return frozenset(found - flat)

    def features(self) -> set[int]:
        """Classes of which parameters or optimizer state have a dim, or a part of one."""
        found = {c for v in (*self.parameters, *self.states) for _, c in self.classes_of(v)}
        parts = self.parts()
        while True:
            more = {part for part, c in parts if c in found} - found
            if not more:
                return found
            found |= more

    def work(self) -> tuple[Work, Work]:
        """By class: the work of the ops that it runs through, and of those of them that stand in the way."""
        nodes, most = self.program.nodes, max(self.n, 1)
        # By pairs of an op and a class; what stands in the way is a factor that must be whole, or a value that has the
        # class twice.
        here, bad = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for a in self.alike:
            for f in a.factors:
                if f.dims:
                    here.append(a.nodes * most + self.label[a.dims(f.dims[0])])
                    if f.is_blocked:
                        bad.append(here[-1])
        twice = self._twice()
        more = [
            op.index * most + c
            for op, reads in zip(nodes, self.program.reads(), strict=True)
            for i in (*reads, *[v.id for v in op.outs])
            if i in twice
            for c in twice[i]
        ]
        bad.append(np.array(more, np.int64))
        touches, hinders = (np.unique(np.concatenate(x)) for x in (here, bad))
        hinders = hinders[np.isin(hinders, touches, assume_unique=True)]
        weight = np.array([
            max(f.flops, float(sum([size(v.shape) for v in op.outs]))) * (op.outs[0].times if op.outs else 1.0)
            for op, f in zip(nodes, self.factors, strict=True)
        ])  # fmt: skip
        touched, hindered = (np.bincount(x % most, weight[x // most], self.n) for x in (touches, hinders))
        order = list(dict.fromkeys((touches % most).tolist()))  # as they first appear
        return {c: float(touched[c]) for c in order}, {c: float(hindered[c]) for c in order if hindered[c]}

    def _twice(self) -> dict[int, list[int]]:
        """By value, the classes that it has more than one dim of."""
        at = np.flatnonzero(self.is_long)
        keys, count = np.unique(self.value_of[at] * max(self.n, 1) + self.label[at], return_counts=True)
        found: dict[int, list[int]] = {}
        for key in keys[count > 1].tolist():
            found.setdefault(self.values[key // max(self.n, 1)].id, []).append(key % max(self.n, 1))
        return found

    def choose(self, touched: Work, hindered: Work) -> list[int]:
        """The batch; none where no class may be it."""
        leading = {int(self.label[self.start[v.id]]) for v in self.data if v.shape and v.shape[0] > 1}
        most = max(touched.values(), default=0.0)
        large = [c for c, n in touched.items() if n >= _LEAST * most]
        clean = [c for c in large if self.is_clean(c, touched, hindered)]
        if clean:
            return [self.first(clean, touched)]
        first = [c for c in large if c in leading]
        return sorted(first, key=lambda c: hindered.get(c, 0.0) - touched[c])[:1]

    def is_clean(self, c: int, touched: Work, hindered: Work) -> bool:
        return hindered.get(c, 0.0) <= _CLEAN * touched.get(c, 0.0)

    def first(self, some: Sequence[int], touched: Work) -> int:
        """Of those that most work runs along, the one that most data have, the leading one."""
        best = max(touched[c] for c in some)
        alike = [c for c in some if touched[c] >= _ALIKE * best]
        position: dict[int, int] = {}
        leaves: Counter[int] = Counter()
        for v in self.data:
            for d, c in reversed(self.classes_of(v)):
                position[c] = min(d, position.get(c, d))
            leaves.update({c for _, c in self.classes_of(v)})
        return min(alike, key=lambda c: (-leaves[c], position.get(c, len(self.values)), -touched[c]))

    def add_parts(self, chosen: list[int], features: set[int], touched: Work, hindered: Work) -> None:
        """What the batch is a part of; of what it is made of, one part."""
        inside: defaultdict[int, set[int]] = defaultdict(set)
        for part, c in self.parts():
            inside[c].add(part)
        grown = True
        while grown and chosen:
            grown = False
            for c, parts in inside.items():
                if c not in chosen and c not in features and parts & set(chosen):
                    chosen.append(c)
                    grown = True
                elif c in chosen and not parts & set(chosen):
                    clean = [p for p in sorted(parts) if p in touched and self.is_clean(p, touched, hindered)]
                    if clean:
                        chosen.append(self.first(clean, touched))
                        grown = True

    def add_others(self, chosen: list[int], touched: Work, hindered: Work) -> None:
        """Clean classes of arguments without a batch, of which no value has one that is chosen already, too."""
        for v in self.data:
            own = [c for _, c in self.classes_of(v)]
            if chosen and not set(own) & set(chosen):
                clean = [c for c in own if c in touched and self.is_clean(c, touched, hindered)]
                chosen += [c for c in clean if not self._meets(c, chosen)][:1]

    def _meets(self, c: int, some: Collection[int]) -> bool:
        """Whether a value has dims of a class and of some others."""
        with_it, with_others = ({v.id for v, _ in self._dims_in(x)} for x in ({c}, some))
        return bool(with_it & with_others)
