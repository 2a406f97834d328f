"""``sbp.scope``: marks in a function which say on which devices its ops run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from ..errors import PlanError
from ..placement import Placement
from ..shardings import as_placement
from ..trace import Structured
from .microbatches import Unit, nodes_of

_MARK = re.compile(r"sbp_scope_(\w+)_at_([\dx]+)_of_([\d_]+)_end")


@contextmanager
def scope(placement: Any) -> Iterator[None]:
    """The ops written inside belong to ``placement``, a part of the devices: a stage of a pipeline.

    OneFlow's ``flow.scope.placement``. For a function that is run with ``AutoParallelConfig(pipeline=...)``; its
    backward ops follow. ``placement`` is a ``sbp.placement`` (``p.stage(0)``) or a ``jax.sharding.Mesh``.

        with sbp.scope(placement=p.stage(0)):
            h = jax.nn.relu(x @ w1)
        with sbp.scope(placement=p.stage(1)):
            y = h @ w2
    """
    where = as_placement(placement)
    ranks = "_".join(map(str, where.flat_ranks))
    name = f"sbp_scope_{where.type}_at_{'x'.join(map(str, where.shape))}_of_{ranks}_end"
    with jax.named_scope(name):
        yield


def mark_of(unit: Unit) -> str:
    """The mark of an op, the innermost; "" for none.

    Raises ``PlanError`` for one inside the body of a loop or branch, which runs as a whole.
    """
    if isinstance(unit, Structured):
        inner = {m for body in unit.bodies for op in body.nodes() if (m := _mark(op.info))}
        if inner:
            raise PlanError(
                f"sbp.scope inside the body of a {unit.kind}: a loop or branch runs as a whole, in one stage. Put the "
                "scope around it, or write the loop out"
            )
        return next((m for op in nodes_of(unit) if (m := _mark(op.info))), "")
    return _mark(unit.info)


def _mark(info: Any) -> str:
    found = _MARK.findall(str(getattr(info, "name_stack", "")))
    return "|".join(found[-1]) if found else ""


def marked_placement(mark: str, like: Placement) -> Placement:
    """The devices that a mark names, with the axis names of ``like``."""
    kind, shape, ranks = mark.split("|")
    sizes = tuple(map(int, shape.split("x")))
    n = len(sizes)
    names = like.axis_names[-n:] if n <= like.ndim else tuple(f"axis{k}" for k in range(n))
    return Placement(kind, sizes, tuple(map(int, ranks.split("_"))), names, like.is_abstract, like.cluster)
