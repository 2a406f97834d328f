"""What changed between two calls with nnx objects of different structure, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from .. import capture
from ..plan import PlanData
from .variables import Entry

_MOST = 6


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
    told = _differences(before.variables, now.variables, _variable)
    if not told:
        told = _differences(before.statics, now.statics, _short)
    return _some(told) or "the objects' structure"


def plan_differences(plan: PlanData, now: Mapping[str, Any]) -> str:
    """The variables and arrays, by label, in which a plan's arguments differ from those at hand; "" where none does."""
    planned = {x.path: (tuple(x.shape), x.dtype) for x in plan.inputs if not x.path.startswith("constant ")}
    here = {path: (tuple(np.shape(x)), str(capture.aval(x).dtype)) for path, x in now.items()}
    return _some(_differences(planned, here, _variable))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], show: Any) -> list[str]:
    told = [f"{k} is new ({show(now[k])})" for k in now if k not in before]
    told += [f"{k} is gone ({show(before[k])})" for k in before if k not in now]
    told += [f"{k} was {show(before[k])}, is {show(now[k])}" for k in now if k in before and _differ(before[k], now[k])]
    return told


def _differ(a: Any, b: Any) -> bool:
    try:
        return a is not b and not bool(a == b)
    except (TypeError, ValueError):
        return True


def _variable(x: tuple[tuple[int, ...], str]) -> str:
    return f"{x[1]}{list(x[0])}"


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _some(told: Sequence[str]) -> str:
    return "; ".join(told[:_MOST]) + (f"; and {len(told) - _MOST} more" if len(told) > _MOST else "")
