"""Equations that do something besides their results, and those whose results the host or the device makes up.

Each becomes an op that one device runs once (``rules/once.py``), followed by what puts its results together again from
the words that they are sent as.
"""

from collections.abc import Sequence
from typing import Any

import jax

from .._compat import opened
from ..errors import SbpError
from ..rules import lookup
from ..rules.once import Once, from_words, run_once, words_of
from ..rules.user import REGISTERED
from .graph import Atom
from .scope import Tracer
from .source import user_line

# Without an effect of JAX's, but not the same whenever and wherever they run.
_IMPURE = ("pure_callback", "buffer_callback", "rng_uniform")
_KNOWN = {"DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect", "FfiEffect", "BufferCallbackEffect"}
# The op is only not to be dropped; every device may run it.
_HARMLESS = {"NoDCEEffect"}


def concerns(eqn: Any) -> bool:
    """Whether an equation has an effect, or results that are not made from its operands alone."""
    return bool(eqn.effects) or eqn.primitive.name in _IMPURE


def emit(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """The equation as an op that runs once. Effects that this library does not know raise ``SbpError``."""
    name, info = eqn.primitive.name, eqn.source_info
    kinds = {type(e).__name__ for e in eqn.effects}
    avals = [v.aval for v in eqn.outvars]
    unknown = kinds - _KNOWN - _HARMLESS
    if unknown:
        raise SbpError(
            f"{user_line(info) or 'an unknown line'}: {name} has an effect ({', '.join(sorted(unknown))}) that cannot "
            "be part of a planned function, where every device runs the same code. Do it outside of it, or on "
            "the host with jax.experimental.io_callback, which runs once"
        )
    if name in REGISTERED or (kinds and kinds <= _HARMLESS):  # how a user's primitive splits is the user's to say
        return t.emit(name, ins, avals, eqn.params, eqn.primitive, info, has_effect=bool(kinds))
    rule = lookup(name)
    own = rule is not None and rule.local is run_once
    call = Once(eqn.primitive, eqn.params, any("Ordered" in k for k in kinds))
    dtypes = [a.dtype for a in avals]
    words = [jax.ShapeDtypeStruct(a.shape, w) for a in avals for w in words_of(a.dtype)]
    sent = t.emit(name if own else "sbp.once", ins, words, {"once": call}, eqn.primitive, info, has_effect=bool(kinds))
    if not words:
        return sent
    return t.expand(eqn, *opened(jax.make_jaxpr(lambda *w: from_words(w, dtypes))(*words)), sent)
