"""Routes: the cheapest sequence of moves from one signature to another, intermediate signatures allowed.

A shortest path over signatures (Dijkstra), in seconds and then bytes. Costs depend on a tensor only through its
bytes and on which dims divide, so all routes from one signature are found once and kept.
"""

import functools
import heapq
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .. import cluster as clusters
from ..cluster import Cluster
from ..errors import SignatureError
from ..pieces import is_even, stored_shape
from ..shardings import PlacementLike, SbpLike, as_placement, signature_on
from ..signature import Partial, Signature, broadcast, partial_sum
from . import matrix
from .table import Step, moves


@dataclass(frozen=True, slots=True)
class Route:
    """The steps that take a tensor from ``src`` to ``dst``. Prints as a table."""

    src: Signature
    dst: Signature
    shape: tuple[int, ...]
    dtype: str
    axis_names: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def bytes(self) -> float:
        """Bytes each device sends in all."""
        return sum(s.bytes for s in self.steps)

    @property
    def seconds(self) -> float:
        """Predicted seconds in all."""
        return sum(s.seconds for s in self.steps)

    @property
    def collectives(self) -> tuple[str, ...]:
        """The kinds of its collectives, in order."""
        return tuple(s.kind for s in self.steps if s.is_collective)

    def __str__(self) -> str:
        table = Table(
            title=f"({self.src}) -> ({self.dst}), {self.dtype}{list(self.shape)}", box=box.SIMPLE, title_justify="left"
        )
        for name in ("step", "axes", "from", "to", "bytes sent", "seconds"):
            table.add_column(name)
        for s in self.steps:
            axes = ", ".join(self.axis_names[a] for a in s.axes)
            table.add_row(s.kind, axes, f"({s.src})", f"({s.dst})", f"{s.bytes:.0f}", f"{s.seconds:.3g}")
        table.add_row("total", "", "", "", f"{self.bytes:.0f}", f"{self.seconds:.3g}")
        buffer = io.StringIO()
        Console(file=buffer, width=110, no_color=True, force_jupyter=False, force_terminal=False).print(table)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


Paths = dict[Signature, tuple[float, float, Step | None]]


@functools.lru_cache(maxsize=65536)
def paths(
    src: Signature, shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], cluster: Cluster,
    extra: tuple[Partial, ...] = (), uneven: bool = False,
) -> Paths:  # fmt: skip
    """By signature reached: seconds and bytes from ``src``, and the last step there."""
    # Not by ``csgraph``: up to one route in six ties in seconds; its predecessors ignore bytes and the order of moves.
    best: Paths = {src: (0.0, 0.0, None)}
    order = itertools.count()
    queue: list[tuple[float, float, int, Signature]] = [(0.0, 0.0, next(order), src)]
    done: set[Signature] = set()
    while queue:
        seconds, sent, _, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        for step in _moves(here, shape, itemsize, mesh, cluster, extra, uneven):
            new = (seconds + step.seconds, sent + step.bytes)
            if step.dst not in best or new < best[step.dst][:2]:
                best[step.dst] = (*new, step)
                heapq.heappush(queue, (*new, next(order), step.dst))
    return best


@functools.lru_cache(maxsize=65536)
def _moves(
    src: Signature, shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], cluster: Cluster,
    extra: tuple[Partial, ...], uneven: bool,
) -> tuple[Step, ...]:  # fmt: skip
    return tuple(moves(src, shape, itemsize, mesh, cluster, extra, uneven))


def _extra(*signatures: Signature) -> tuple[Partial, ...]:
    kinds = {c for s in signatures for c in s if isinstance(c, Partial)} - {partial_sum}
    return tuple(sorted(kinds, key=str))


def itemsize_of(dtype: Any) -> int:
    """Bytes an element; a typed random key counts its words."""
    text = dtype_name(dtype)
    return _WORD_BYTES * words_of(text) if text.startswith("key<") else int(jax.numpy.dtype(text).itemsize)


_WORD_BYTES = 4


def words_of(dtype: Any) -> int:
    """How many numbers are moved for one element: the 32-bit words of a random key, otherwise 1."""
    text = dtype_name(dtype)
    if not text.startswith("key<"):
        return 1
    return 2 if text == "key<fry>" else 4  # Threefry's; those of XLA's own generators (rbg, unsafe_rbg)


def check_partial(signature: Signature, dtype: Any) -> None:
    """Raise ``SignatureError`` where values of ``dtype`` have no such terms: no sum of bools, no maximum of complex."""
    name = dtype_name(dtype)
    for c in signature:
        if not isinstance(c, Partial):
            continue
        if name.startswith("key<") or (name == "bool" and c.op == "sum"):
            raise SignatureError(
                f"({signature}): {name} values have no partial terms, there is no {c.op} of them; possible: B, S(dim)"
                + (", P(max) (any), P(min) (all), or convert them to a number first" if name == "bool" else "")
            )
        if c.op != "sum" and name.startswith("complex"):
            raise SignatureError(f"({signature}): {name} values have no order, so no {c.op}; possible: P, B, S(dim)")


def dtype_name(dtype: Any) -> str:
    """The name of a dtype given as itself, its name or its scalar type. Raises ``SignatureError`` for others."""
    text = str(dtype)
    if text.startswith("key<"):
        return text
    try:
        return jax.numpy.dtype(dtype).name
    except TypeError as error:
        raise SignatureError(f"dtype {dtype!r} is not known; possible: names like 'float32', or jnp.float32") from error


def route(
    src: SbpLike,
    dst: SbpLike,
    placement: PlacementLike,
    shape: Sequence[int],
    dtype: object = "float32",
    cluster: Cluster | str | None = None,
) -> Route:
    """The cheapest way to redistribute a tensor of ``shape`` and ``dtype`` on one placement.

    Bytes are per device, seconds by the cluster's description (the placement's own where none is given). A split that
    does not divide sends its pieces padded. Raises ``SignatureError`` where a signature does not fit, a piece would be
    empty, or terms of this dtype cannot be reduced.
    """
    shape = tuple(shape)
    where = as_placement(placement)
    a, b = (signature_on(s, len(shape), where) for s in (src, dst))
    hardware = clusters.resolve(cluster or where.cluster, where.type, where.is_abstract)
    return _route(a, b, shape, dtype_name(dtype), where.shape, where.axis_names, hardware)


@functools.lru_cache(maxsize=65536)
def _route(
    a: Signature, b: Signature, shape: tuple[int, ...], dtype: str, mesh: tuple[int, ...], names: tuple[str, ...],
    cluster: Cluster,
) -> Route:  # fmt: skip
    for s in (a, b):
        stored_shape(shape, s, mesh)
        check_partial(s, dtype)
    start, end = _plain(a, mesh), _plain(b, mesh)
    uneven = not (is_even(shape, start, mesh) and is_even(shape, end, mesh))
    found = paths(start, shape, itemsize_of(dtype), mesh, cluster, _extra(start, end), uneven)
    if end not in found:
        raise SignatureError(f"there is no way from ({a}) to ({b}) for shape {shape}")
    steps: list[Step] = []
    here = end
    while (step := found[here][2]) is not None:
        steps.append(step)
        here = step.src
    steps.reverse()
    if not steps:
        steps = _renamed(a, b, mesh)
    else:
        steps = [*_renamed(a, start, mesh), *steps, *_renamed(end, b, mesh)]
    return Route(a, b, shape, dtype, names, tuple(steps))


def _plain(signature: Signature, mesh: tuple[int, ...]) -> Signature:
    """The signature with B on every axis of one device, where all components mean the same."""
    if 1 not in mesh:
        return signature
    return Signature(tuple(broadcast if n == 1 else c for n, c in zip(mesh, signature, strict=True)))


def _renamed(a: Signature, b: Signature, mesh: tuple[int, ...]) -> list[Step]:
    """The step between signatures that differ on axes of one device only: nothing is moved or copied."""
    axes = tuple(i for i, n in enumerate(mesh) if n == 1 and a[i] != b[i])
    return [Step("slice", axes, a, b, 0.0, 0.0)] if axes else []


def seconds_matrix(
    states: Sequence[Signature],
    shape: Sequence[int],
    itemsize: int,
    mesh: Sequence[int],
    cluster: Cluster,
) -> np.ndarray:
    """Seconds between every two of ``states``: those of ``cost_matrix``, sooner; ``inf`` where there is no way."""
    mesh, shape = tuple(mesh), tuple(shape)
    plain = [_plain(s, mesh) for s in states]
    even = [is_even(shape, s, mesh) for s in plain]
    if all(even):
        return matrix.seconds_matrix(plain, shape, itemsize, mesh, cluster, _extra(*plain))
    found = matrix.padded_seconds_matrix(plain, shape, itemsize, mesh, cluster, _extra(*plain))
    if any(even):  # what needs no padding goes no way that does
        some = np.flatnonzero(even)
        alike = [plain[k] for k in some]
        found[np.ix_(some, some)] = matrix.seconds_matrix(alike, shape, itemsize, mesh, cluster, _extra(*plain))
    return found


def cost_matrix(
    states: Sequence[Signature],
    shape: Sequence[int],
    itemsize: int,
    mesh: Sequence[int],
    cluster: Cluster,
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and bytes each device sends, between every two of ``states``; ``inf`` where there is no way."""
    n, mesh, shape = len(states), tuple(mesh), tuple(shape)
    plain = [_plain(s, mesh) for s in states]
    seconds, sent = np.full((n, n), np.inf), np.full((n, n), np.inf)
    extra = _extra(*plain)
    even = [is_even(shape, s, mesh) for s in plain]
    for i, a in enumerate(plain):
        ways = {
            uneven: paths(a, shape, itemsize, mesh, cluster, extra, uneven)
            for uneven in {not (even[i] and other) for other in even}
        }
        for j, b in enumerate(plain):
            found = ways[not (even[i] and even[j])]
            if b in found:
                seconds[i, j], sent[i, j] = found[b][:2]
    return seconds, sent
