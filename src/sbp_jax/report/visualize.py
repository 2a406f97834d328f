"""Which device holds which piece of a tensor: as a grid in text, as a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh
from rich import box
from rich.console import RenderableType
from rich.table import Table

from ..errors import SignatureError
from ..pieces import piece_box
from ..placement import Placement
from ..shardings import PlacementLike, as_placement, signature_on
from ..signature import Partial, Signature
from . import svg
from .text import plain_text
from .units import shape_text

_MOST_CELLS = 12
_MOST_RANKS = 12
_MOST_DRAWN = 8

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one device holds: first and last index (exclusive) of every dimension. ``term``: which term of a sum, if
    the tensor is partial."""

    device: int
    position: tuple[int, ...]
    box: Box
    term: int | None = None


@dataclass(frozen=True, slots=True)
class Visualization:
    """The pieces of a tensor by device, in the order of the mesh. Printed it is a grid; in Jupyter a picture."""

    shape: tuple[int, ...]
    signature: str
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    pieces: tuple[Piece, ...]

    @property
    def split_dims(self) -> tuple[int, ...]:
        """The dimensions that are cut; of these two are drawn."""
        return tuple(d for d in range(len(self.shape)) if len({p.box[d] for p in self.pieces}) > 1)

    @property
    def shown_dims(self) -> tuple[int, ...]:
        """The at most two dimensions that are drawn, as rows and columns: those cut first."""
        rest = [d for d in range(len(self.shape)) if d not in self.split_dims]
        return tuple(sorted([*self.split_dims, *rest][:2]))

    def to_dict(self) -> dict[str, Any]:
        """Plain data: by device, the ranges it holds, and which term of a partial value."""
        return {
            "shape": list(self.shape), "signature": self.signature,
            "mesh": dict(zip(self.axis_names, self.mesh_shape, strict=True)),
            "pieces": [{"device": p.device, "position": list(p.position), "box": [list(x) for x in p.box],
                        "term": p.term} for p in self.pieces],
        }  # fmt: skip

    def __str__(self) -> str:
        return plain_text(_parts(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return svg.fragment(picture(self))


def visualize(tensor: Any, placement: PlacementLike | None = None, shape: Sequence[int] | None = None) -> Visualization:
    """Which device holds which piece of ``tensor``; partial values are marked.

    Args:
        tensor: a ``GlobalTensor``; or a ``jax.Array``; or a signature, with ``placement`` and ``shape``; or a tuple
            of these three.

    Returns:
        A ``Visualization``: ``print`` it, or let Jupyter draw it.

    Raises:
        SignatureError: for something else, or a signature that the shape cannot have.
    """
    if isinstance(tensor, tuple) and len(tensor) == 3 and isinstance(tensor[1], Placement | Mesh | AbstractMesh):
        tensor, placement, shape = tensor
    if placement is not None and shape is not None:
        where = as_placement(placement)
        return of_signature(signature_on(tensor, len(shape), where), where, tuple(shape))
    where = getattr(tensor, "placement", None)
    if isinstance(where, Placement):
        given: Any = tensor
        return of_signature(given.sbp, where, tuple(given.shape))
    if hasattr(tensor, "sharding") and hasattr(tensor, "shape"):
        return _of_array(tensor)
    raise SignatureError(
        f"visualize takes a global tensor, a jax.Array, or a signature with a placement and a shape, as in "
        f"visualize('S(0)', placement, (8, 4)); got {type(tensor).__name__}"
    )


def of_signature(signature: Signature, placement: Placement, shape: tuple[int, ...]) -> Visualization:
    """The pieces of a tensor that nobody has made."""
    sizes = placement.shape
    partial = [a for a, c in enumerate(signature) if isinstance(c, Partial)]
    pieces = []
    for k, rank in enumerate(np.asarray(placement.ranks).ravel().tolist()):
        position = _position(k, sizes)
        box_ = piece_box(shape, signature, sizes, position)
        pieces.append(Piece(rank, position, box_, _term(partial, sizes, position)))
    return Visualization(shape, str(signature), sizes, tuple(placement.axis_names), tuple(pieces))


def _of_array(array: Any) -> Visualization:
    """The pieces of a ``jax.Array``: its sharding says, no data is looked at."""
    shape = tuple(array.shape)
    sharding = array.sharding
    where = sharding.devices_indices_map(shape)
    mesh = getattr(sharding, "mesh", None)
    sizes: tuple[int, ...] = (len(where),)
    names: tuple[str, ...] = ("device",)
    devices = list(where)
    if mesh is not None:
        sizes, names = tuple(mesh.devices.shape), tuple(map(str, mesh.axis_names))
        devices = list(mesh.devices.flat)
    unreduced = set(map(str, getattr(getattr(sharding, "spec", None), "unreduced", ()) or ()))
    partial = [a for a, name in enumerate(names) if name in unreduced]
    pieces = []
    for k, device in enumerate(devices):
        position = _position(k, sizes)
        ranges = tuple(s.indices(n)[:2] for s, n in zip(where[device], shape, strict=True))
        pieces.append(Piece(int(device.id), position, ranges, _term(partial, sizes, position)))
    words = str(getattr(sharding, "spec", type(sharding).__name__))
    return Visualization(shape, words, sizes, names, tuple(pieces))


def _term(partial: Sequence[int], sizes: Sequence[int], position: Sequence[int]) -> int | None:
    """Which of the terms along the partial axes; None where no axis is."""
    if not partial:
        return None
    term = 0
    for a in partial:
        term = term * sizes[a] + position[a]
    return term


def _position(k: int, sizes: Sequence[int]) -> tuple[int, ...]:
    found = []
    for n in reversed(sizes):
        k, at = divmod(k, n)
        found.append(at)
    return tuple(reversed(found))


def _cells(v: Visualization) -> tuple[list[Any], list[Any], dict[tuple[Any, Any], list[Piece]]]:
    """The ranges of rows and of columns, in order, and the pieces in each cell of the grid."""
    dims = v.shown_dims
    row, column = (dims[0] if len(dims) == 2 else None), (dims[-1] if dims else None)
    cells: dict[tuple[Any, Any], list[Piece]] = {}
    for p in v.pieces:
        key = (None if row is None else p.box[row], None if column is None else p.box[column])
        cells.setdefault(key, []).append(p)
    ranks = lambda k: sorted({key[k] for key in cells}, key=lambda x: x or (0, 0))  # noqa: E731
    return ranks(0), ranks(1), cells


def _parts(v: Visualization) -> Iterator[RenderableType]:
    rows, columns, cells = _cells(v)
    mesh = ", ".join(f"{n}={k}" for n, k in zip(v.axis_names, v.mesh_shape, strict=True))
    yield f"{shape_text(v.shape)} as ({v.signature}) on {len(v.pieces)} devices [{mesh}]"
    dims = v.shown_dims
    table = Table(box=box.SQUARE, show_header=True, show_lines=True, pad_edge=False)
    table.add_column(f"dim {dims[0]}" if len(dims) == 2 else "", no_wrap=True)
    for c in columns[:_MOST_CELLS]:
        table.add_column("" if c is None else f"dim {dims[-1]}: {c[0]}:{c[1]}", justify="center", no_wrap=True)
    for r in rows[:_MOST_CELLS]:
        line = [
            "\n".join(_devices(cells[r, c])) if (r, c) in cells else "" for c in columns[:_MOST_CELLS]
        ]  # fmt: skip
        table.add_row("" if r is None else f"{r[0]}:{r[1]}", *line)
    yield table
    for what, some in (("rows", rows), ("columns", columns)):
        if len(some) > _MOST_CELLS:
            yield f"  the first {_MOST_CELLS} of {len(some)} {what} of pieces"
    hidden = [d for d in v.split_dims if d not in dims]
    if hidden:
        yield f"  also cut along dim {', '.join(map(str, hidden))}: devices in one cell hold different parts"
    if any(p.term is not None for p in v.pieces):
        terms = len({p.term for p in v.pieces})
        yield f"  partial: {terms} terms, +0 to +{terms - 1}, reduce to the value"


def _devices(pieces: Sequence[Piece]) -> list[str]:
    """The devices of one cell, by term where they hold terms."""
    by_term: dict[int | None, list[int]] = {}
    for p in pieces:
        by_term.setdefault(p.term, []).append(p.device)
    found = [f"{'' if term is None else f'+{term}: '}{_ranges(ranks)}" for term, ranks in by_term.items()]
    return found if len(found) <= 4 else [*found[:3], f"... {len(found) - 3} more terms"]


def _ranges(ranks: Sequence[int]) -> str:
    """``0-3, 8``."""
    found: list[list[int]] = []
    for r in sorted(ranks):
        if found and r == found[-1][1] + 1:
            found[-1][1] = r
        else:
            found.append([r, r])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in found]
    return ", ".join(texts) if len(texts) <= _MOST_RANKS else ", ".join([*texts[:4], f"... {len(ranks)} devices"])


def picture(v: Visualization, title: str = "", cell: float = 62.0) -> str:
    """The mesh as an SVG: a tile for each device, in it the tensor's outline with the piece it holds filled in."""
    rows_of_mesh = v.mesh_shape[0] if len(v.mesh_shape) > 1 else 1
    columns_of_mesh = len(v.pieces) // max(rows_of_mesh, 1)
    shown_rows = rows_of_mesh if rows_of_mesh <= _MOST_DRAWN else _MOST_DRAWN // 2
    shown_columns = min(columns_of_mesh, _MOST_DRAWN)
    dims = v.shown_dims
    drawn = [
        p for k, p in enumerate(v.pieces) if k // columns_of_mesh < shown_rows and k % columns_of_mesh < shown_columns
    ]
    ranges = sorted({tuple(p.box[d] for d in dims) for p in drawn})
    colour = {r: k for k, r in enumerate(ranges)}
    left, top = 58.0, 34.0
    parts: list[str] = []
    for k, p in enumerate(v.pieces):
        i, j = divmod(k, columns_of_mesh)
        if i >= shown_rows or j >= shown_columns:
            continue
        x, y = left + j * (cell + 6), top + i * (cell + 6)
        parts.append(_tile(v, p, x, y, cell, colour[tuple(p.box[d] for d in dims)], len(ranges)))
    width, height = left + shown_columns * (cell + 6) + 8, top + shown_rows * (cell + 6) + 22
    names = v.axis_names
    if len(v.mesh_shape) > 1:
        across = ", ".join(names[1:])
        parts.append(svg.text(8, top + shown_rows * (cell + 6) / 2, f"{names[0]} ↓", size=11, css="dim"))
        parts.append(svg.text(left, 14, f"{across} →", size=11, css="dim"))
    else:
        parts.append(svg.text(left, 14, f"{names[0]} →", size=11, css="dim"))
    more = [
        f"{shown} of {n} {what}"
        for shown, n, what in ((shown_rows, rows_of_mesh, "rows"), (shown_columns, columns_of_mesh, "columns"))
        if shown < n
    ]
    if more:
        words = f"the first {' and '.join(more)} of devices; small pieces are drawn larger"
        parts.append(svg.text(left, height - 6, words, size=11, css="dim"))
    label = f"{title + ': ' if title else ''}{shape_text(v.shape)} as ({v.signature}): who holds which piece"
    return svg.image(width, height, label, "".join(parts))


def _tile(v: Visualization, p: Piece, x: float, y: float, cell: float, colour: int, colours: int) -> str:
    dims = v.shown_dims
    pad, inner_top = 6.0, 17.0
    w, h = cell - 2 * pad, cell - pad - inner_top

    def along(d: int | None, length: float) -> tuple[float, float]:
        if d is None or not v.shape[d]:
            return 0.0, length
        a, b = p.box[d]
        size = max(5.0, length * (b - a) / v.shape[d])
        return min(length * a / v.shape[d], length - size), size

    x0, dx = along(dims[-1] if dims else None, w)
    y0, dy = along(dims[0] if len(dims) == 2 else None, h)
    held = ", ".join(f"{a}:{b}" for a, b in p.box) or "the scalar"
    term = "" if p.term is None else f", term {p.term} of a partial value"
    return (
        f'<g><title>device {p.device} holds [{held}]{term}</title>'
        + svg.rect(x, y, cell, cell, css="tile", radius=5)
        + svg.text(x + pad, y + 12, str(p.device), size=10, css="dim")
        + (svg.text(x + cell - pad, y + 12, f"+{p.term}", size=10, css="part", anchor="end") if term else "")
        + svg.rect(x + pad, y + inner_top, w, h, css="hollow")
        + svg.rect(x + pad + x0, y + inner_top + y0, dx, dy, css="held partial" if term else "held",
                   extra=f' style="--k:{colour / max(1, colours):.3f}"')
        + "</g>"
    )  # fmt: skip
