"""Calls: equations whose body simply takes their place."""

from collections.abc import Callable, Sequence
from typing import Any

from .._compat import opened
from ..errors import SbpError
from .graph import Atom
from .scope import Tracer
from .source import user_line

# primitive -> the parameter that holds the body
BODIES = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr", "xla_metadata_call": "jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr", "composite": "jaxpr", "custom_vmap_call": "call",
    "linear_call": "callee", "remat_opt": "fwd_jaxpr",
}  # fmt: skip


def linear_solve(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``lax.custom_linear_solve``: only its solver runs; the rest of it is for derivatives, taken before."""
    lengths, (solve, consts) = eqn.params["const_lengths"], opened(eqn.params["jaxprs"].solve)
    first = lengths.matvec + lengths.vecmat
    operands = [*ins[first : first + lengths.solve], *ins[sum(lengths) :]]
    return t.expand(eqn, solve, consts, operands)


def _refuse(what: str, instead: str) -> Callable[..., Sequence[Atom]]:
    def handler(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
        line = user_line(eqn.source_info) or "an unknown line"
        raise SbpError(f"{line}: {what} cannot be part of a planned function; {instead}")

    return handler


_reference = _refuse(
    "a mutable reference (jax.new_ref)", "carry the array through the computation instead, x = x.at[...].set(...)"
)

HANDLERS: dict[str, Callable[..., Sequence[Atom]]] = {
    "custom_linear_solve": linear_solve,
    "shard_map": _refuse(
        "a shard_map",
        "the whole function becomes one. Write the code of one device as a function of its pieces, and say how it "
        "splits: @sbp.register_rule('b k, k n -> b n')",
    ),
    "check": _refuse(
        "a check of jax.experimental.checkify that is not functionalized",
        "hand over the checked function: sbp.auto_parallel(checkify.checkify(f))",
    ),
    **dict.fromkeys(
        ("infeed", "outfeed"), _refuse("infeed or outfeed", "use jax.experimental.io_callback, which runs once")
    ),
    **dict.fromkeys(("new_ref", "empty_ref", "get", "swap", "addupdate", "freeze", "free_ref"), _reference),
}
