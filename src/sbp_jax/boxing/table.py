"""Every move there is: one signature to another by one collective, or by none.

A move changes one mesh axis, or several at once where one collective does it: they all hold the same and all get the
same. Bytes are what each device sends, for a group of p devices and T bytes as the group sees them (the logical bytes
over the splits of other axes): all_gather and reduce_scatter (p-1)/p T, all_reduce 2(p-1)/p T, all_to_all (p-1)/p T/p
(Chan et al., "Collective communication: theory, practice, and experience", CCPE 19(13), 2007). Slicing, and making a
partial value of a whole or split one, are local copies. A partial maximum becomes split by an all_to_all of its terms,
reduced locally: (p-1)/p T. Splits that only change places among axes are a permute: every device sends its piece, T/p.

Signatures nest, outermost axis first, so a move that gathers or cuts a dim must not have an inner axis splitting
the same dim: the pieces would come out in another order. Likewise reductions of different kinds do not commute
(the sum of maxima is not the maximum of sums): an axis becomes partial, or stops being so, only while no inner axis
is partial in another reduction.

Where a dim does not divide, pieces are sent padded to the longest (``pieces.py``): T counts the padding.
"""

import itertools
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..cluster import ROOTED, Cluster
from ..errors import SignatureError
from ..pieces import is_even, splits, stored_shape
from ..signature import Broadcast, Component, Partial, Signature, Split, broadcast, partial_sum

LOCAL = ("slice", "to_partial")
# In every step's seconds. Breaks ties: of two routes that cost the same, the one with fewer steps.
_STEP_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """One move: ``axes`` of the mesh change from ``src`` to ``dst``; ``bytes`` each device sends; seconds."""

    kind: str
    axes: tuple[int, ...]
    src: Signature
    dst: Signature
    bytes: float
    seconds: float

    @property
    def collective(self) -> str | None:
        """The collective by its kind; None for what a device does alone."""
        return self.kind if self.is_collective else None

    @property
    def is_collective(self) -> bool:
        """Whether devices talk."""
        return self.kind not in LOCAL


def fits(shape: Sequence[int], signature: Signature, mesh: Sequence[int], uneven: bool = False) -> bool:
    """Whether every split divides, nested cuts included; with ``uneven``, whether no piece is empty."""
    if not uneven:
        return is_even(shape, signature, mesh)
    try:
        stored_shape(shape, signature, mesh)
    except SignatureError:
        return False
    return True


def _kind(a: Component, b: Component) -> str | None:
    """The collective that takes one component to another on a single axis."""
    if isinstance(a, Broadcast):
        return "slice" if isinstance(b, Split) else "to_partial"
    if isinstance(a, Split):
        return {Broadcast: "all_gather", Split: "all_to_all", Partial: "to_partial"}[type(b)]
    if isinstance(b, Broadcast):
        return "all_reduce"
    if isinstance(b, Split):
        return "reduce_scatter" if a.op == "sum" else "all_to_all"
    return None


def _is_ordered(signature: Signature, axes: Sequence[int], dims: set[int]) -> bool:
    """No axis inside the outermost changed one, and not changed itself, splits a dim that is gathered or cut."""
    return not any(
        isinstance(c, Split) and c.dim in dims and i > axes[0] and i not in axes for i, c in enumerate(signature)
    )


def _is_commuting(src: Signature, axes: Sequence[int], ops: Set[str]) -> bool:
    """No axis inside the outermost changed one, and not changed itself, is partial in another reduction."""
    return not ops or not any(
        isinstance(c, Partial) and {c.op} != ops and i > axes[0] and i not in axes for i, c in enumerate(src)
    )


def moves(
    signature: Signature, shape: Sequence[int], itemsize: int, mesh: Sequence[int], cluster: Cluster,
    extra: Sequence[Partial] = (), uneven: bool = False,
) -> Iterator[Step]:  # fmt: skip
    """Every move from a signature, none on axes of one device.

    ``extra``: partial kinds besides sums to be made. ``uneven``: whether pieces may differ in length.
    """
    axes = [i for i, n in enumerate(mesh) if n > 1]
    targets: list[Component] = [broadcast, partial_sum, *extra, *(Split(d) for d in range(len(shape)))]
    groups: list[tuple[str, tuple[int, ...], Signature]] = []
    for i in axes:
        for b in targets:
            kind = _kind(signature[i], b) if b != signature[i] else None
            if kind is not None:
                groups.append((kind, (i,), signature.replace(i, b)))
    for size in range(2, len(axes) + 1):
        for group in itertools.combinations(axes, size):
            groups.extend(_joint(group, signature, len(shape)))
    stored = stored_shape(shape, signature, mesh)
    for kind, group, dst in groups:
        step = _step(kind, group, signature, dst, shape, stored, itemsize, mesh, cluster, uneven)
        if step is not None:
            yield step
    for group, dst in _permuted(signature, mesh):
        sent, seconds = move_cost("permute", group, float(math.prod(stored) * itemsize), False, mesh, cluster)
        yield Step("permute", group, signature, dst, sent, seconds)


def _joint(group: tuple[int, ...], signature: Signature, ndim: int) -> Iterator[tuple[str, tuple[int, ...], Signature]]:
    """One collective over several axes that all hold the same component, and all get the same."""
    a = signature[group[0]]
    if any(signature[i] != a for i in group[1:]) or isinstance(a, Broadcast):
        return
    for b in (broadcast, *(Split(d) for d in range(ndim) if Split(d) != a)):
        dst = signature
        for i in group:
            dst = dst.replace(i, b)
        yield _kind(a, b) or "", group, dst


def _permuted(signature: Signature, mesh: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Signature]]:
    """Signatures whose pieces are the same, held by other devices: splits that change places among axes."""
    axes = [i for i, c in enumerate(signature) if isinstance(c, Split) and mesh[i] > 1]
    seen = {signature}
    for order in itertools.permutations(axes):
        dst = signature
        for i, j in zip(axes, order, strict=True):
            dst = dst.replace(i, signature[j])
        if dst not in seen and _cuts(signature, mesh) == _cuts(dst, mesh):
            seen.add(dst)
            yield tuple(axes), dst


def _cuts(signature: Signature, mesh: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """By dim the sizes of the axes that split it, outermost first."""
    return {c.dim: splits(signature, mesh, c.dim) for c in signature if isinstance(c, Split)}


def _step(
    kind: str, axes: tuple[int, ...], src: Signature, dst: Signature, shape: Sequence[int], stored: tuple[int, ...],
    itemsize: int, mesh: Sequence[int], cluster: Cluster, uneven: bool,
) -> Step | None:  # fmt: skip
    gathered = {c.dim for i in axes if isinstance(c := src[i], Split)}
    cut = {c.dim for i in axes if isinstance(c := dst[i], Split)}
    ops = {c.op for s in (src, dst) for i in axes if isinstance(c := s[i], Partial)}
    if not _is_ordered(src, axes, gathered | cut) or not _is_commuting(src, axes, ops):
        return None
    elements = _group_elements(shape, stored, src, dst, mesh, axes, gathered, cut, uneven)
    if elements is None:
        return None
    sent, seconds = move_cost(kind, axes, elements * itemsize, bool(gathered), mesh, cluster)
    return Step(kind, axes, src, dst, sent, seconds)


def move_cost(
    kind: str, axes: tuple[int, ...], group_bytes: float, gathers: bool, mesh: Sequence[int], cluster: Cluster
) -> tuple[float, float]:
    """Bytes each device sends, and seconds, of a move of a tensor of ``group_bytes`` as its group sees it.

    ``gathers``: whether the source is split along the axes.
    """
    if kind in LOCAL:
        # XLA fuses a slice, or a value masked to zero, into what reads it; only a piece put into zeros is a copy.
        return 0.0, (cluster.copy_seconds(group_bytes) if gathers else 0.0) + _STEP_SECONDS
    if kind == "permute":  # a device's own piece
        return group_bytes, cluster.collective_seconds(kind, group_bytes, mesh, axes) + _STEP_SECONDS
    p = math.prod(mesh[i] for i in axes)
    share = (p - 1) / p
    exchanges = kind == "all_to_all" and gathers  # each brings a piece, not a term of the whole
    passed = {"all_reduce": 2 * share, "all_to_all": share / p if exchanges else share} | dict.fromkeys(ROOTED, 1.0)
    sent = group_bytes * passed.get(kind, share)
    return sent, cluster.collective_seconds(kind, sent, mesh, axes) + _STEP_SECONDS


def _group_elements(
    shape: Sequence[int], stored: Sequence[int], src: Signature, dst: Signature, mesh: Sequence[int],
    axes: Sequence[int], gathered: Set[int], cut: Set[int], uneven: bool,
) -> float | None:  # fmt: skip
    """Elements of the tensor as a group sees it, padded to whole pieces of what it gathers or cuts.

    None where that cannot be: a piece would be empty, or, unless ``uneven``, of another length than the next.
    """
    p = math.prod(mesh[i] for i in axes)
    if not uneven:
        divides = all(stored[d] % p == 0 for d in cut)
        return float(math.prod(stored) * p ** len(gathered)) if divides else None
    if not fits(shape, dst, mesh, uneven):
        return None
    if len(axes) > 1 and any(shape[d] % math.prod(splits(s, mesh, d)) for s in (src, dst) for d in gathered | cut):
        return None  # nested pieces of different lengths do not line up in one collective
    after = stored_shape(shape, dst, mesh)
    lengths = [p * n if d in gathered else p * after[d] if d in cut else n for d, n in enumerate(stored)]
    return float(math.prod(lengths))
