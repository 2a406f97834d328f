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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...rules import Factors
from ...rules.base import size
from ...trace import Op, Program, Value
from .clusters import free_values
from .roles import Roles

# What stands in the way of a batch is at most this part of the work along it.
_CLEAN = 1e-3
# A batch has at least this part of the work that any other class has, and those with so much are alike.
_LEAST = 0.25
_ALIKE = 0.9
# What multiplies activations with a matrix.
_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}

Dim = tuple[int, int]
Work = Mapping[Dim, float]


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


@dataclass(frozen=True, slots=True)
class _Factor:
    """One factor of one op: the dims that it is, and those that it is a part of."""

    dims: tuple[Dim, ...]
    whole: tuple[Dim, ...]
    is_blocked: bool


class DimClasses:
    """The dimensions of all values of a program (by value id and number), those that are one in a class."""

    def __init__(self, program: Program, factors: Sequence[Factors]) -> None:
        self.above: dict[Dim, Dim] = {}
        self.shared = _shared_constants(program, factors)
        self.ops = [(op, _factors_of(op, f, self.shared), f) for op, f in zip(program.nodes, factors, strict=True)]
        for _, parts, _ in self.ops:
            for part in parts.values():
                for other in part.dims[1:]:
                    self.join(part.dims[0], other)
        self.links = self.parts()

    def parts(self) -> list[tuple[Dim, Dim]]:
        """All pairs of a dim and one that it is a part of. What is cut into parts as it was made of them is the same
        parts again."""
        links = [
            (part.dims[0], d) for _, parts, _ in self.ops for part in parts.values() if part.dims for d in part.whole
        ]
        made: list[tuple[Dim, tuple[int, ...], tuple[Dim | None, ...]]] = []
        for op, parts, f in self.ops:
            for v, dims in _sides(op, f):
                for d, made_of in enumerate(dims):
                    if len(made_of) > 1:
                        pieces = tuple(parts[k].dims[0] if parts[k].dims else None for k in made_of)
                        made.append(((v.id, d), tuple(f.sizes[k] for k in made_of), pieces))
        grown = True
        while grown:
            grown = False
            known: dict[tuple[Dim, tuple[int, ...]], tuple[Dim | None, ...]] = {}
            for dim, sizes, pieces in made:
                for a, b in zip(known.setdefault((self.root(dim), sizes), pieces), pieces, strict=True):
                    if a is not None and b is not None and self.root(a) != self.root(b):
                        self.join(a, b)
                        grown = True
        return links

    def root(self, dim: Dim) -> Dim:
        above = self.above
        top = above.get(dim)
        if top is None:
            return dim
        while (up := above.get(top)) is not None:
            top = up
        while dim != top:
            above[dim], dim = top, above[dim]
        return top

    def join(self, a: Dim, b: Dim) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.above[b] = a

    def classes_of(self, v: Value) -> list[tuple[int, Dim]]:
        """The dims of a value, longer than 1, with their classes."""
        return [(d, self.root((v.id, d))) for d, n in enumerate(v.shape) if n > 1]


class _Finder(DimClasses):
    def __init__(self, program: Program, factors: Sequence[Factors], found: Roles) -> None:
        super().__init__(program, factors)
        self.program = program
        self.data = [program.input_ops[i].outs[0] for i in found.data]
        self.parameters = [program.input_ops[i].outs[0] for i in found.parameters]
        self.states = [program.input_ops[i].outs[0] for i in found.states]
        self.values = {v.id: v for op in program.nodes for v in op.outs}
        self.join_along_constants()

    def join_along_constants(self) -> None:
        """Join what reads one constant along the same dim, but for features: its shape may be theirs by chance."""
        features = self.features()
        for op, _, f in self.ops:
            if any(x.id in self.shared for x in op.reads):
                for part in _factors_of(op, f, set()).values():
                    plain = [d for d in part.dims if self.root(d) not in features]
                    for other in plain[1:]:
                        self.join(plain[0], other)
        self.links = self.parts()

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
        data_dims: dict[int, tuple[int, ...]] = {}
        for v in self.values.values():
            found = self.classes_of(v)
            where = [d for c in chosen for d, own in found if own == c]
            if where:
                dims[v.id] = where[0]
            # What has no examples, the state and its updates, may share features with data.
            if (where or not chosen) and (of := tuple(d for d, c in found if c in of_data)):
                data_dims[v.id] = of
        return Examples(dims, data_dims, self.weights())

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
        return frozenset(v for v in found if len(self.values[v].shape) > 1)

    def features(self) -> set[Dim]:
        """Classes of which parameters or optimizer state have a dim, or a part of one."""
        found = {c for v in (*self.parameters, *self.states) for _, c in self.classes_of(v)}
        while True:
            more = {self.root(part) for part, d in self.links if self.root(d) in found} - found
            if not more:
                return found
            found |= more

    def work(self) -> tuple[Work, Work]:
        """By class: the work of the ops that it runs through, and of those of them that stand in the way."""
        touched: defaultdict[Dim, float] = defaultdict(float)
        hindered: defaultdict[Dim, float] = defaultdict(float)
        twice: dict[int, list[Dim]] = {}  # by value, the classes that it has more than one dim of
        for v in self.values.values():
            own = [c for _, c in self.classes_of(v)]
            if len(set(own)) < len(own):
                twice[v.id] = [c for c in own if own.count(c) > 1]
        for (op, parts, f), reads in zip(self.ops, self.program.reads(), strict=True):
            weight = max(f.flops, float(sum(size(v.shape) for v in op.outs))) * (op.outs[0].times if op.outs else 1.0)
            here: set[Dim] = set()
            bad: set[Dim] = set()
            for part in parts.values():
                if part.dims:
                    c = self.root(part.dims[0])
                    here.add(c)
                    if part.is_blocked:
                        bad.add(c)
            for i in (*reads, *[v.id for v in op.outs]):
                bad.update(twice.get(i, ()))
            for c in here:
                touched[c] += weight
            for c in bad & here:
                hindered[c] += weight
        return touched, hindered

    def choose(self, touched: Work, hindered: Work) -> list[Dim]:
        """The batch; none where no class may be it."""
        leading = {self.root((v.id, 0)) for v in self.data if v.shape and v.shape[0] > 1}
        most = max(touched.values(), default=0.0)
        large = [c for c, n in touched.items() if n >= _LEAST * most]
        clean = [c for c in large if self.is_clean(c, touched, hindered)]
        if clean:
            return [self.first(clean, touched)]
        first = [c for c in large if c in leading]
        return sorted(first, key=lambda c: hindered.get(c, 0.0) - touched[c])[:1]

    def is_clean(self, c: Dim, touched: Work, hindered: Work) -> bool:
        return hindered.get(c, 0.0) <= _CLEAN * touched.get(c, 0.0)

    def first(self, some: Sequence[Dim], touched: Work) -> Dim:
        """Of those that most work runs along, the one that most data have, the leading one."""
        best = max(touched[c] for c in some)
        alike = [c for c in some if touched[c] >= _ALIKE * best]
        position: dict[Dim, int] = {}
        leaves: Counter[Dim] = Counter()
        for v in self.data:
            for d, c in reversed(self.classes_of(v)):
                position[c] = min(d, position.get(c, d))
            leaves.update({c for _, c in self.classes_of(v)})
        return min(alike, key=lambda c: (-leaves[c], position.get(c, len(self.values)), -touched[c]))

    def add_parts(self, chosen: list[Dim], features: set[Dim], touched: Work, hindered: Work) -> None:
        """What the batch is a part of; of what it is made of, one part."""
        grown = True
        while grown and chosen:
            grown = False
            inside: defaultdict[Dim, set[Dim]] = defaultdict(set)
            for part, d in self.links:
                inside[self.root(d)].add(self.root(part))
            for c, parts in inside.items():
                if c not in chosen and c not in features and parts & set(chosen):
                    chosen.append(c)
                    grown = True
                elif c in chosen and not parts & set(chosen):
                    clean = [p for p in parts if p in touched and self.is_clean(p, touched, hindered)]
                    if clean:
                        chosen.append(self.first(clean, touched))
                        grown = True

    def add_others(self, chosen: list[Dim], touched: Work, hindered: Work) -> None:
        """Clean classes of arguments without a batch, of which no value has one that is chosen already, too."""
        together: defaultdict[Dim, set[Dim]] = defaultdict(set)
        for v in self.values.values():
            here = {c for _, c in self.classes_of(v)}
            for c in here:
                together[c] |= here
        for v in self.data:
            own = [c for _, c in self.classes_of(v)]
            if chosen and not set(own) & set(chosen):
                clean = [c for c in own if c in touched and self.is_clean(c, touched, hindered)]
                chosen += [c for c in clean if not together[c] & set(chosen)][:1]


def _sides(op: Op, f: Factors) -> Iterator[tuple[Value, Sequence[Sequence[int]]]]:
    """The values that an op reads and makes, each with the factors of its dims."""
    for v, dims in (*zip(op.ins, f.ins, strict=True), *zip(op.outs, f.outs, strict=True)):
        if isinstance(v, Value):
            yield v, dims


def _shared_constants(program: Program, factors: Sequence[Factors]) -> set[int]:
    """Values made of scalars that several ops read: zeros that logits and a weight of their shape have in common say
    nothing of the dims of either."""
    free = free_values(program, factors, {})
    return {v for v, readers in program.consumers().items() if v in free and len(readers) > 1}


def _factors_of(op: Op, f: Factors, shared: set[int]) -> dict[int, _Factor]:
    """By number; what is ``shared`` has no dims."""
    own: defaultdict[int, list[Dim]] = defaultdict(list)
    whole: defaultdict[int, list[Dim]] = defaultdict(list)
    for v, dims in _sides(op, f):
        i = v.id
        if i in shared:
            continue
        for d, made_of in enumerate(dims):
            if len(made_of) == 1:
                own[made_of[0]].append((i, d))
            else:
                for factor in made_of:
                    whole[factor].append((i, d))
    return {k: _Factor(tuple(own[k]), tuple(whole[k]), k in f.blocked) for k in {**own, **whole}}
