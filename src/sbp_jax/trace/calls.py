"""Calls: equations whose body simply takes their place."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._compat import lowered_function, opened
from ..errors import SbpError
from .graph import Atom
from .scope import Tracer
from .source import is_user, user_line

# primitive -> the parameter that holds the body
BODIES = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr", "xla_metadata_call": "jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr", "composite": "jaxpr", "custom_vmap_call": "call",
    "linear_call": "callee", "remat_opt": "fwd_jaxpr",
}  # fmt: skip


def written_out(eqn: Any) -> Any:
    """The closed jaxpr of a library's primitive that is a function of arrays by the time XLA sees it; else None.

    Equinox makes such primitives, and Lineax's solvers are some: they have rules of their own for derivatives and
    ``vmap``, which have been applied. Their functions are called here and not when the program is lowered: within
    ``shard_map`` arrays have other types, and such functions compare them with those that they met first. A user's own
    primitive stays whole and is reported, since who wrote it can say how it splits.
    """
    function = lowered_function(eqn.primitive)
    code = getattr(function, "__code__", None)
    if function is None or code is None or is_user(code.co_filename) or eqn.effects:
        return None
    given = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
    return jax.make_jaxpr(functools.partial(function, **eqn.params))(*given)


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
