"""Calls: equations whose body simply takes their place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .graph import Atom

if TYPE_CHECKING:
    from .build import Tracer

# primitive -> the parameter that holds the body
BODIES = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr", "composite": "jaxpr", "custom_vmap_call": "call",
    "linear_call": "callee", "remat_opt": "fwd_jaxpr",
}  # fmt: skip


def linear_solve(t: "Tracer", eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``lax.custom_linear_solve``: only its solver runs; the rest of it is for derivatives, taken before."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    operands = [*ins[first : first + lengths.solve], *ins[sum(lengths) :]]
    return t.expand(eqn, solve.jaxpr, solve.consts, operands)


HANDLERS = {"custom_linear_solve": linear_solve}
