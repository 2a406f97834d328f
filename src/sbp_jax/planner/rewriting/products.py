"""Products of matrices: parallel ones as one, sums of them as one, and the order in which three are multiplied.

Jia et al., "TASO: Optimizing Deep Learning Computation with Automatic Generation of Graph Substitutions", SOSP 2019,
section 2 and table 2 (fused products, associativity, distributivity); found there by enumeration, written by hand here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...trace import Op, Value
from .labels import labels_of, natural_order, operands_may_swap, product
from .random_shapes import array, dtype_of, lengths, wider
from .substitution import Change, Instance, RandomInstance, Scope, Site, Substitution, register

# Of so many parallel products the neighbours are tried in pairs, too.
_MOST_PAIRS = 8


def alike(ops: Sequence[Op], *but: str) -> bool:
    """Whether ops are of one primitive with the same parameters (some left out), types and ranks."""
    first = ops[0]

    def look(op: Op) -> Any:
        params = {k: v for k, v in op.params.items() if k not in but}
        return op.name, params, [(x.dtype, len(x.shape)) for x in (*op.ins, *op.outs)]

    return all(look(op) == look(first) for op in ops)


def reads_values(*ops: Op) -> bool:
    """Whether all operands are arrays, none a scalar written in the program."""
    return all(isinstance(x, Value) for op in ops for x in op.ins)


def shared_operand(ops: Sequence[Op]) -> int | None:
    """Which operand ops have in common, the other one being different each time."""
    for k in (0, 1):
        same = {x.id for op in ops if isinstance(x := op.ins[k], Value)}
        others = {x.id for op in ops if isinstance(x := op.ins[1 - k], Value)}
        if len(same) == 1 and len(others) == len(ops):
            return k
    return None


def sharing(ops: Iterable[Op], fits: Callable[[Site], bool]) -> Iterator[Site]:
    """Ops that share an operand: all that fit together, those of one shape, and neighbours in pairs."""
    by: dict[Any, list[Op]] = {}
    for op in ops:
        for k in (0, 1):
            shared, other = op.ins[k], op.ins[1 - k]
            if isinstance(shared, Value) and isinstance(other, Value):
                by.setdefault((k, shared.id, str(sorted(op.params.items())), str(other.dtype)), []).append(op)
    for found in by.values():
        if len(found) < 2:
            continue
        if fits(tuple(found)):
            yield tuple(found)
        shapes: dict[Any, list[Op]] = {}
        for op in found:
            shapes.setdefault(tuple(x.shape for x in op.ins), []).append(op)
        yield from (tuple(x) for x in shapes.values() if len(x) > 1)
        if len(found) <= _MOST_PAIRS:
            yield from ((a, b) for n, a in enumerate(found) for b in found[n + 1 :])


def pieces(x: Any, dim: int, lengths: Sequence[int]) -> list[Any]:
    """An array cut along a dim."""
    ends = np.cumsum(lengths)
    return [lax.slice_in_dim(x, int(e - n), int(e), axis=dim) for e, n in zip(ends, lengths, strict=True)]


def _free(op: Op, k: int) -> list[int]:
    """The dims of an operand that are in the result and in no other operand."""
    labels = labels_of(op)
    own, other = (labels.left, labels.right) if k == 0 else (labels.right, labels.left)
    return [d for d, x in enumerate(own) if x not in other]


def _side_by_side(scope: Scope, ops: Site) -> Change | None:
    """``x a, x b -> x (a, b)``, cut into its parts; the same for a shared right operand."""
    if len(ops) < 2 or any(op.name != "dot_general" for op in ops) or not reads_values(*ops) or not alike(ops):
        return None
    k = shared_operand(ops)
    if k is None:
        return None
    others = [op.ins[1 - k] for op in ops]
    free = _free(ops[0], 1 - k)
    differ = [d for d in range(len(others[0].shape)) if len({x.shape[d] for x in others}) > 1]
    if not free or len(differ) > 1 or not set(differ) <= set(free):
        return None
    dim = (differ or free)[0]
    labels = labels_of(ops[0])
    at = labels.out.index((labels.right if k == 0 else labels.left)[dim])
    lengths = [x.shape[dim] for x in others]

    def make(shared: Any, *parts: Any) -> list[Any]:
        both = lax.concatenate(parts, dim)
        x, y = (shared, both) if k == 0 else (both, shared)
        return pieces(product(x, labels.left, y, labels.right, labels.out, ops[0]), at, lengths)

    return Change((ops[0].ins[k], *others), tuple(op.outs[0] for op in ops), make)  # pyright: ignore[reportArgumentType]


def _stacked(scope: Scope, ops: Site) -> Change | None:
    """``x a, x b -> x [a, b]`` with a new dim for which: what is split of ``a`` and ``b`` can stay split."""
    if len(ops) < 2 or any(op.name != "dot_general" for op in ops) or not reads_values(*ops) or not alike(ops):
        return None
    k = shared_operand(ops)
    others = [op.ins[1 - k] for op in ops] if k is not None else []
    if k is None or len({x.shape for x in others}) > 1:
        return None
    labels, new = labels_of(ops[0]), -1
    own = labels.right if k == 0 else labels.left
    free = _free(ops[0], 1 - k)
    dim = free[0] if free else len(own)
    own = (*own[:dim], new, *own[dim:])
    left, right = (labels.left, own) if k == 0 else (own, labels.right)
    out = natural_order(left, right, [*labels.out, new])
    at = out.index(new)

    def make(shared: Any, *parts: Any) -> list[Any]:
        both = lax.concatenate([lax.expand_dims(x, (dim,)) for x in parts], dim)
        x, y = (shared, both) if k == 0 else (both, shared)
        z = product(x, left, y, right, out, ops[0])
        return [lax.squeeze(part, (at,)) for part in pieces(z, at, [1] * len(parts))]

    return Change((ops[0].ins[k], *others), tuple(op.outs[0] for op in ops), make)  # pyright: ignore[reportArgumentType]


def _find_parallel(change: Callable[[Scope, Site], Change | None]) -> Callable[[Scope], Iterator[Site]]:
    def find(scope: Scope) -> Iterator[Site]:
        yield from sharing(scope.named("dot_general"), lambda ops: change(scope, ops) is not None)

    return find


def find_sums(name: str) -> Callable[[Scope], Iterator[Site]]:
    """Additions of two results of a primitive: the addition, then what it adds."""

    def find(scope: Scope) -> Iterator[Site]:
        for op in scope.named("add", "add_any"):
            makers = [scope.maker(x, name) for x in op.ins]
            if makers[0] is not None and makers[1] is not None and makers[0] is not makers[1]:
                yield op, makers[0], makers[1]

    return find


def is_sum(scope: Scope, ops: Site, name: str) -> bool:
    """Whether a site is an addition of two results of a primitive, alike but for lengths."""
    if len(ops) != 3 or ops[0].name not in ("add", "add_any"):
        return False
    total, a, b = ops
    made = [scope.maker(x, name) for x in total.ins]
    return made == [a, b] and reads_values(a, b) and alike((a, b)) and total.outs[0].dtype == a.outs[0].dtype


def _sum_as_one(scope: Scope, ops: Site) -> Change | None:
    """``x a + y b -> (x, y) (a, b)``, side by side along the dim that is summed."""
    if not is_sum(scope, ops, "dot_general"):
        return None
    total, a, b = ops
    labels = labels_of(a)
    summed = [x for x in labels.left if x in labels.right and x not in labels.out]
    differ = [x for k, own in enumerate((labels.left, labels.right)) for d, x in enumerate(own)
              if a.ins[k].shape[d] != b.ins[k].shape[d]]  # fmt: skip
    if not summed or len(set(differ)) > 1 or not set(differ) <= set(summed):
        return None
    label = (differ or summed)[0]

    def make(x: Any, y: Any, u: Any, v: Any) -> list[Any]:
        left = lax.concatenate([x, u], labels.left.index(label))
        right = lax.concatenate([y, v], labels.right.index(label))
        return [product(left, labels.left, right, labels.right, labels.out, a)]

    return Change((*a.reads, *b.reads), total.outs, make)


def _distributed(scope: Scope, ops: Site) -> Change | None:
    """``x a + x b -> x (a + b)``; the same for a shared right operand.

    Not where the result has a wider type than the operands: ``a + b`` would be rounded there, or overflow.
    """
    if not is_sum(scope, ops, "dot_general"):
        return None
    total, *both = ops
    k = shared_operand(both)
    others = [op.ins[1 - k] for op in both] if k is not None else []
    if k is None or len({x.shape for x in others}) > 1 or others[0].dtype != total.outs[0].dtype:
        return None
    labels = labels_of(both[0])

    def make(shared: Any, a: Any, b: Any) -> list[Any]:
        x, y = (shared, lax.add(a, b)) if k == 0 else (lax.add(a, b), shared)
        return [product(x, labels.left, y, labels.right, labels.out, both[0])]

    return Change((both[0].ins[k], *others), total.outs, make)  # pyright: ignore[reportArgumentType]


def _find_chains(scope: Scope) -> Iterator[Site]:
    for op in scope.named("dot_general"):
        for x in op.ins:
            if (inner := scope.maker(x, "dot_general")) is not None:
                yield op, inner


def _reassociated(scope: Scope, ops: Site) -> Change | None:
    """``(x a) b -> x (a b)``, whichever two of the three have a dim to be summed, where that is less arithmetic."""
    if len(ops) != 2 or any(op.name != "dot_general" for op in ops) or not reads_values(*ops):
        return None
    outer, inner = ops
    at = [k for k, x in enumerate(outer.ins) if scope.maker(x) is inner]
    types = {x.dtype for op in ops for x in (*op.ins, *op.outs)}
    precision = [op.params["precision"] for op in ops]
    if len(at) != 1 or len(types) > 1 or precision[0] != precision[1] or not operands_may_swap(precision[0]):
        return None
    # One numbering for three operands: the inner product's labels, through its result into the outer one.
    first, second = labels_of(inner), labels_of(outer)
    own, other = (second.left, second.right) if at[0] == 0 else (second.right, second.left)
    names = {x: first.out[d] for d, x in enumerate(own)}
    free = max(*first.left, *first.right, 0) + 1
    for x in (*other, *second.out):
        names.setdefault(x, free + len(names))
    third, out = tuple(names[x] for x in other), tuple(names[x] for x in second.out)
    b = outer.ins[1 - at[0]]
    lengths = dict(zip((*first.left, *first.right, *third), [n for x in (*inner.ins, b) for n in x.shape], strict=True))

    def flops(*labels: int) -> float:
        return float(np.prod([lengths[x] for x in set(labels)], dtype=float))

    before = flops(*first.left, *first.right) + flops(*first.out, *third)
    best: tuple[float, int, tuple[int, ...]] | None = None
    for k, (keeps, joins) in enumerate(((first.left, first.right), (first.right, first.left))):
        middle = tuple(natural_order(joins, third, [x for x in (*joins, *third) if x in keeps or x in out]))
        middle = tuple(dict.fromkeys(middle))
        if not set(joins) & set(third) - set(keeps) - set(out):
            continue  # nothing is summed: an outer product
        cost = flops(*joins, *third) + flops(*keeps, *middle)
        if cost < before and (best is None or cost < best[0]):
            best = cost, k, middle
    if best is None:
        return None
    _, k, middle = best
    keeps, joins = (first.left, first.right) if k == 0 else (first.right, first.left)

    def make(x: Any, y: Any, z: Any) -> list[Any]:
        kept, joined = (x, y) if k == 0 else (y, x)
        m = product(joined, joins, z, third, middle, outer)
        if natural_order(middle, keeps, out) == list(out):
            return [product(m, middle, kept, keeps, out, outer)]
        return [product(kept, keeps, m, middle, out, outer)]

    return Change((*inner.reads, b), outer.outs, make)  # pyright: ignore[reportArgumentType]


def _parallel_instance(same: bool) -> RandomInstance:
    def instance(random: np.random.Generator) -> Instance:
        """Two or three products that share their left or right operand, batched or not, dims in random order."""
        batch, rows, inner = lengths(random, 3)
        count, dtype, is_right = int(random.integers(2, 4)), dtype_of(random, np.int8), bool(random.integers(2))
        letters = "bk" if random.integers(2) else "k"
        sizes = {"b": batch, "m": rows, "k": inner}
        shared = "".join(random.permutation(list(letters + "m")))
        other = "".join(random.permutation(list(letters + "n")))
        columns = [int(random.integers(1, 5))] * count if same else lengths(random, count)
        shapes = [[sizes.get(c, n) for c in other] for n in columns]
        result = wider(random, dtype)

        def f(x: Any, *parts: Any) -> list[Any]:
            return [_einsum(*((shared, other, x, p) if not is_right else (other, shared, p, x)), result) for p in parts]

        return f, [array([sizes[c] for c in shared], dtype), *(array(s, dtype) for s in shapes)]

    return instance


def _einsum(left: str, right: str, x: Any, y: Any, result: Any = None) -> Any:
    """A product by letters; b is a batch, k is summed."""
    batch = [c for c in left if c in right and c != "k"]
    return lax.dot_general(
        x, y,
        (([left.index("k")], [right.index("k")]), ([left.index(c) for c in batch], [right.index(c) for c in batch])),
        preferred_element_type=result,
    )  # fmt: skip


def _sum_instance(shared: bool) -> RandomInstance:
    def instance(random: np.random.Generator) -> Instance:
        """The sum of two products, with or without a shared operand."""
        m, n, k, j = lengths(random, 4)
        dtype, at = dtype_of(random, np.int8), int(random.integers(2))
        result = wider(random, dtype)
        if not shared:
            left, right = ("mk", "km")[at], ("kn", "nk")[int(random.integers(2))]
            sizes = {"m": m, "n": n}
            shapes = [[sizes.get(c, length) for c in s] for length in (k, j) for s in (left, right)]
            return lambda x, a, y, b: _einsum(left, right, x, a, result) + _einsum(left, right, y, b, result), [
                array(s, dtype) for s in shapes
            ]

        def f(x: Any, a: Any, b: Any) -> Any:
            pairs = ((x, a), (x, b)) if at == 0 else ((a, x), (b, x))
            first, second = (jnp.matmul(*p, preferred_element_type=result) for p in pairs)
            return first + second

        other = (k, n) if at == 0 else (n, m)
        return f, [array((m, k), dtype), array(other, dtype), array(other, dtype)]

    return instance


def _chain_instance(random: np.random.Generator) -> Instance:
    """Three matrices, or a batch of them, whose product is cheaper in another order."""
    m, k, n = (int(x) for x in random.integers(4, 7, size=3))
    dtype, p = dtype_of(random, np.int8), int(random.integers(1, 3))
    batch = [(), (2,)][int(random.integers(2))]
    if random.integers(2):
        return lambda x, a, b: (x @ a) @ b, [array((*batch, *s), dtype) for s in ((m, k), (k, n), (n, p))]
    return lambda x, a, b: b @ (x @ a), [array((*batch, *s), dtype) for s in ((k, n), (n, m), (p, k))]


parallel = register(
    Substitution("parallel products", _find_parallel(_side_by_side), _side_by_side, _parallel_instance(False))
)
stacked = register(Substitution("stacked products", _find_parallel(_stacked), _stacked, _parallel_instance(True)))
sums = register(Substitution("sum of products", find_sums("dot_general"), _sum_as_one, _sum_instance(False)))
distributed = register(Substitution("product of a sum", find_sums("dot_general"), _distributed, _sum_instance(True)))
associated = register(Substitution("order of products", _find_chains, _reassociated, _chain_instance))
