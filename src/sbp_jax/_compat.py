"""What differs between versions of JAX, or is not said in its public interface. Nothing else may depend on either."""

from typing import Any

import jax.core
from jax._src.core import trace_state_clean

# Tracers of jax.jvp, and of jax.grad and jax.vjp since JAX linearizes directly.
_DIFFERENTIATING = ("JVPTracer", "LinearizeTracer")


def is_tracer(x: Any) -> bool:
    """Whether a value is only being traced (jit, grad, vmap), so that there is no data."""
    return isinstance(x, jax.core.Tracer)


def is_differentiated(x: Any) -> bool:
    """Whether a value is one that ``jax.grad`` or ``jax.jvp`` differentiates by."""
    return type(x).__name__ in _DIFFERENTIATING


def is_tracing() -> bool:
    """Whether JAX is tracing here (jit, grad, vmap, eval_shape), so that nothing can be placed on devices."""
    return not trace_state_clean()
