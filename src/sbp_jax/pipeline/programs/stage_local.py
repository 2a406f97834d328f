"""A stage's program on one device's pieces, as one jaxpr that is yet to be cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from ..._compat import opened
from ...errors import InternalError
from ...lower.emit import Emitter, Scope
from ...plan import PlanData
from ...shardings import to_partition_spec
from ...signature import Signature
from ...trace import Op, Program, Structured
from .cutting import is_literal
from .stage_program import LOOP


@dataclass(frozen=True, slots=True)
class LocalStage:
    """The jaxpr; by its variables the arguments that they are, by number, and the arrays that the lowering wrote into
    it; the variables of the results, in order."""

    jaxpr: Any
    port_of: dict[Any, int]
    constants: dict[Any, Any]
    out_vars: list[Any]


def loop_of(program: Program) -> Structured | None:
    """The loop over the micro-batches; None for a stage without one."""
    loops = (u for u in program.graph.ops if isinstance(u, Structured))
    return next((u for u in loops if LOOP in str(getattr(u.info, "name_stack", ""))), None)


def local_stage(program: Program, plan: PlanData, loop: Structured | None, mesh: Mesh) -> LocalStage:
    """Lower a stage's program by its plan. ``mesh`` is the placement's, or one that has its axes and others."""
    emit = _StageEmitter(program, plan)
    emit.loop = loop
    where = plan.placement
    mapped = jax.shard_map(
        emit.run, mesh=mesh, check_vma=False,
        in_specs=tuple(to_partition_spec(x.signature, where, len(x.shape)) for x in plan.inputs),
        out_specs=[to_partition_spec(x.signature, where, len(x.shape)) for x in plan.outputs],
    )  # fmt: skip
    avals = [
        jax.ShapeDtypeStruct(op.outs[0].shape, op.outs[0].dtype, weak_type=op.outs[0].weak) for op in program.input_ops
    ]
    whole, held = opened(jax.make_jaxpr(mapped)(*avals))
    (equation,) = [e for e in whole.eqns if e.primitive.name == "shard_map"]
    jaxpr, consts = opened(equation.params["jaxpr"])
    if consts or jaxpr.constvars:
        raise InternalError("a stage's local function has constants of its own")
    # What shard_map takes besides the arguments are arrays that the lowering made while it was traced.
    order, known = {v: i for i, v in enumerate(whole.invars)}, dict(zip(whole.constvars, held, strict=True))
    pairs = list(zip(jaxpr.invars, equation.invars, strict=True))
    port_of = {v: order[x] for v, x in pairs if not is_literal(x) and x in order}
    constants = {v: x.val if is_literal(x) else known[x] for v, x in pairs if v not in port_of}
    inner = dict(zip(equation.outvars, jaxpr.outvars, strict=True))
    return LocalStage(jaxpr, port_of, constants, [inner[v] for v in whole.outvars])


class _StageEmitter(Emitter):
    """Names the loop over the micro-batches, and the node that every equation is of."""

    is_whole = False
    loop: Structured | None = None

    def op(self, op: Op | Structured, scope: Scope) -> None:
        if op is self.loop:
            with jax.named_scope(LOOP):
                super().op(op, scope)
        else:
            super().op(op, scope)

    def compute(self, scope: Scope, op: Op, ins: Sequence[Signature], outs: Sequence[Signature]) -> Sequence[Any]:
        for x, s in zip(op.ins, ins, strict=True):  # boxings keep names of their own
            self.read(scope, x, s)
        with jax.named_scope(f"node{op.index}"):
            return super().compute(scope, op, ins, outs)


def live(eqns: Sequence[Any], wanted: Sequence[Any], loop: Any) -> list[Any]:
    """The equations that results, or the loop, depend on; those with effects."""
    needed = {v for v in wanted if not is_literal(v)}
    found = []
    for e in reversed(eqns):
        if e is loop or e.effects or any(v in needed for v in e.outvars):
            found.append(e)
            needed.update(v for v in e.invars if not is_literal(v))
    return found[::-1]


def behind(eqns: Sequence[Any], loop: Any) -> set[int]:
    """The ids of the equations that the loop depends on."""
    needed = {v for v in loop.invars if not is_literal(v)}
    found = set()
    for e in reversed(eqns):
        if e is not loop and any(v in needed for v in e.outvars):
            found.add(id(e))
            needed.update(v for v in e.invars if not is_literal(v))
    return found
