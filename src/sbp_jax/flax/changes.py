"""What changed between two calls with nnx objects of different structure, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from ..calls.values import aval
from ..differences import differences, some
from ..plan import PlanData
from .variables import Entry


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of nnx objects: shape and dtype by variable, and by attribute the static values."""

    variables: Mapping[str, tuple[tuple[int, ...], str]]
    statics: Mapping[str, Any]

    @classmethod
    def of(cls, objects: Mapping[str, Any], found: Sequence[Entry]) -> "Structure":
        """Of named objects and their variables."""
        statics: dict[str, Any] = {}
        for name, made in objects.items():
            for path, node in nnx.iter_graph(made):
                if isinstance(node, nnx.Pytree):
                    start = "/".join(map(str, (name, *path)))
                    statics[start] = type(node).__name__
                    values = {k: v for k, v in vars(node).items() if not k.startswith("_") and not nnx.is_data(v)}
                    statics |= {f"{start}/{k}": v for k, v in values.items()}
        return cls({e.path: (e.shape, str(e.dtype)) for e in found}, statics)


def changes(before: Structure, now: Structure) -> str:
    """What of the second structure is not as in the first."""
    told = differences(before.variables, now.variables, _variable)
    if not told:
        told = differences(before.statics, now.statics)
    return some(told) or "the objects' structure"


def plan_differences(plan: PlanData, now: Mapping[str, Any]) -> str:
    """The variables and arrays, by label, in which a plan's arguments differ from those at hand; "" where none does."""
    planned = {x.path: (tuple(x.shape), x.dtype) for x in plan.inputs if not x.path.startswith("constant ")}
    here = {path: (tuple(np.shape(x)), str(aval(x).dtype)) for path, x in now.items()}
    return some(differences(planned, here, _variable))


def _variable(x: tuple[tuple[int, ...], str]) -> str:
    return f"{x[1]}{list(x[0])}"
