"""``sbp.scope``: marks in a function which say on which devices its ops run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from ...errors import PlanError
from ...placement import Placement
from ...shardings import as_placement
from ...trace import Program, Structured
from ..microbatches.units import Unit, nodes_of

_MARK = re.compile(r"sbp_scope_(\w+)_at_([\dx]+)_of_([\d_]+)_end")


# Whether anybody marks anything in this process: looking through a program for marks takes a while.
_used: set[bool] = set()


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
    _used.add(True)
    where = as_placement(placement)
    ranks = "_".join(map(str, where.flat_ranks))
    name = f"sbp_scope_{where.type}_at_{'x'.join(map(str, where.shape))}_of_{ranks}_end"
    with jax.named_scope(name):
        yield


def check_unmarked(program: Program, name: str) -> None:
    """Raise ``PlanError`` where a function that is not to run as a pipeline has marks."""
    mark = next((m for op in program.nodes if (m := _mark(op.info))), "") if _used else ""
    if mark:
        where = marked_placement(mark, None)
        raise PlanError(
            f"{name} puts ops on {where} with sbp.scope, and is not asked to run as a pipeline: all its devices would "
            "run them. Give it config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(microbatches=...)), or leave "
            "sbp.scope out"
        )


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


def marked_placement(mark: str, like: Placement | None) -> Placement:
    """The devices that a mark names, with the axis names of ``like``."""
    kind, shape, ranks = mark.split("|")
    sizes = tuple(map(int, shape.split("x")))
    n = len(sizes)
    names = tuple(f"axis{k}" for k in range(n)) if like is None or n > like.ndim else like.axis_names[-n:]
    numbers = tuple(map(int, ranks.split("_")))
    if like is None:
        return Placement(kind, sizes, numbers, names, is_abstract=True)
    return Placement(kind, sizes, numbers, names, like.is_abstract, like.cluster)
