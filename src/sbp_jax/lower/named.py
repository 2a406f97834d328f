"""A plan's program in which every op says which node it is: for profiles. The ops are those of the plain lowering."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..plan import PlanData
from ..signature import Signature
from ..trace import Op, Program
from .emit import Emitter, Scope, check_program
from .gspmd import GlobalEmitter

_NODE, _BOX = re.compile(r"\bnode(\d+)\b"), re.compile(r"\bbox(\d+)\b")


class _Named(Emitter):
    def compute(self, scope: Scope, op: Op, ins: Sequence[Signature], outs: Sequence[Signature]) -> Sequence[Any]:
        for x, s in zip(op.ins, ins, strict=True):  # boxings keep names of their own
            self.read(scope, x, s)
        with jax.named_scope(f"node{op.index}"):
            return super().compute(scope, op, ins, outs)


class _NamedGlobal(_Named, GlobalEmitter):
    pass


def named_function(program: Program, plan: PlanData) -> Callable[..., list[Any]]:
    """As ``local_function``, or ``global_function`` for a plan lowered to constraints, with names in the metadata."""
    check_program(program, plan)
    return (_NamedGlobal if plan.lowering == "gspmd" else _Named)(program, plan).run


def named_in(op_name: str) -> tuple[int, int]:
    """(node, boxing) that an instruction's ``op_name`` names, the innermost; -1 for none. A boxing comes first."""
    boxes, nodes = _BOX.findall(op_name), _NODE.findall(op_name)
    return (int(nodes[-1]) if nodes and not boxes else -1), (int(boxes[-1]) if boxes else -1)
