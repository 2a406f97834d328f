"""Every move there is: one signature to another by one collective, or by none.

A move changes one mesh axis, or several at once where one collective does it. Bytes are what each device sends,
for a group of p devices and T bytes as the group sees them (the logical bytes over the splits of other axes):
all_gather and reduce_scatter (p-1)/p T, all_reduce 2(p-1)/p T, all_to_all (p-1)/p T/p (Chan et al., "Collective
communication: theory, practice, and experience", CCPE 19(13), 2007). Slicing, and making a partial value of a
whole or split one, are local copies.

Signatures nest, outermost axis first, so a move that gathers or cuts a dim must not have an inner axis splitting
the same dim: the pieces would come out in another order. Likewise reductions of different kinds do not commute
(the sum of maxima is not the maximum of sums): an axis becomes partial, or stops being so, only while no inner axis
is partial in another reduction.
"""

import itertools
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..cluster import Cluster
from ..signature import Broadcast, Component, Partial, Signature, Split, broadcast, partial_sum

LOCAL = ("slice", "to_partial")
# Breaks ties: of two routes that cost the same, the one with fewer steps.
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
    def is_collective(self) -> bool:
        """Whether devices talk."""
        return self.kind not in LOCAL


def fits(shape: Sequence[int], signature: Signature, mesh: Sequence[int]) -> bool:
    """Whether every split divides evenly, nested cuts included."""
    left = list(shape)
    for n, c in zip(mesh, signature, strict=True):
        if isinstance(c, Split):
            if left[c.dim] % n:
                return False
            left[c.dim] //= n
    return True


def _kind(a: Component, b: Component) -> str | None:
    """The collective that takes one component to another on a single axis."""
    if isinstance(a, Broadcast):
        return "slice" if isinstance(b, Split) else "to_partial"
    if isinstance(a, Split):
        return {Broadcast: "all_gather", Split: "all_to_all", Partial: "to_partial"}[type(b)]
    if isinstance(b, Broadcast):
        return "all_reduce"
    if isinstance(b, Split) and a.op == "sum":
        return "reduce_scatter"
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
    extra: Sequence[Partial] = (),
) -> Iterator[Step]:  # fmt: skip
    """Every move from a signature, none on axes of one device. ``extra``: partial kinds besides sums to be made."""
    axes = [i for i, n in enumerate(mesh) if n > 1]
    targets: list[Component] = [broadcast, partial_sum, *extra, *(Split(d) for d in range(len(shape)))]
    for i in axes:
        for b in targets:
            kind = _kind(signature[i], b) if b != signature[i] else None
            if kind is not None:
                step = _step(kind, (i,), signature, signature.replace(i, b), shape, itemsize, mesh, cluster)
                if step is not None:
                    yield step
    for size in range(2, len(axes) + 1):
        for group in itertools.combinations(axes, size):
            yield from _joint(group, signature, shape, itemsize, mesh, cluster)


def _joint(
    group: tuple[int, ...], signature: Signature, shape: Sequence[int], itemsize: int, mesh: Sequence[int],
    cluster: Cluster,
) -> Iterator[Step]:  # fmt: skip
    """One collective over several axes that all hold the same component."""
    a = signature[group[0]]
    if any(signature[i] != a for i in group[1:]) or isinstance(a, Broadcast):
        return
    targets: list[Component] = [broadcast]
    if isinstance(a, Partial) and a.op == "sum":
        targets += [Split(d) for d in range(len(shape))]
    for b in targets:
        dst = signature
        for i in group:
            dst = dst.replace(i, b)
        step = _step(_kind(a, b) or "", group, signature, dst, shape, itemsize, mesh, cluster)
        if step is not None:
            yield step


def _step(
    kind: str, axes: tuple[int, ...], src: Signature, dst: Signature, shape: Sequence[int], itemsize: int,
    mesh: Sequence[int], cluster: Cluster,
) -> Step | None:  # fmt: skip
    dims = {c.dim for s in (src, dst) for i in axes if isinstance(c := s[i], Split)}
    ops = {c.op for s in (src, dst) for i in axes if isinstance(c := s[i], Partial)}
    if not _is_ordered(src, axes, dims) or not _is_commuting(src, axes, ops) or not fits(shape, dst, mesh):
        return None
    p = math.prod(mesh[i] for i in axes)
    others = math.prod(mesh[i] for i, c in enumerate(src) if i not in axes and isinstance(c, Split))
    group_bytes = math.prod(shape) * itemsize / others
    if kind in LOCAL:
        # XLA fuses a slice, or a value masked to zero, into what reads it; only a piece put into zeros is a copy.
        copied = cluster.copy_seconds(group_bytes) if isinstance(src[axes[0]], Split) else 0.0
        return Step(kind, axes, src, dst, 0.0, copied + _STEP_SECONDS)
    share = (p - 1) / p
    sent = group_bytes * {"all_reduce": 2 * share, "all_to_all": share / p}.get(kind, share)
    return Step(kind, axes, src, dst, sent, cluster.collective_seconds(kind, sent, mesh, axes))
