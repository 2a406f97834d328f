"""What differs between versions of JAX, or is not said in its public interface. Nothing else may depend on either."""

from typing import Any

import jax.core

# Tracers of jax.jvp, and of jax.grad and jax.vjp since JAX linearizes directly.
_DIFFERENTIATING = ("JVPTracer", "LinearizeTracer")


def is_tracer(x: Any) -> bool:
    """Whether a value is only being traced (jit, grad, vmap), so that there is no data."""
    return isinstance(x, jax.core.Tracer)


def is_differentiated(x: Any) -> bool:
    """Whether a value is one that ``jax.grad`` or ``jax.jvp`` differentiates by."""
    return type(x).__name__ in _DIFFERENTIATING
