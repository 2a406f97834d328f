"""Options for XLA that a planned step is compiled with: those that plans need, those that help, and the user's own."""

import difflib
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import jax

from .._compat import collective_pipelining_options
from ..errors import SbpError

Options = dict[str, bool | int | float | str]

# XLA for CPUs starts all that can start by default: every gathered parameter is held from the beginning, whatever the
# plan says. It also drops barriers, and with them rematerialisation. Compilers for accelerators do neither. Where it
# makes one kernel of a small loop, it knows no barriers: that ends the process.
_NEEDED: dict[str, Options] = {
    "cpu": {
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        "xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting",
    }
}


def _helpful(platform: str) -> Options:
    """What NVIDIA's JAX-Toolbox turns on for large models: collectives start early and run beside compute.

    Its thresholds for combining collectives (8 GiB) stay out: one gather of all parameters would hold them all at once,
    more than the plan says, and nothing could run beside it. XLA's own follow from the memory that is free.
    """
    if platform != "gpu":
        return {}
    return {"xla_gpu_enable_latency_hiding_scheduler": True, **collective_pipelining_options()}


def options_for(platform: str, given: Mapping[str, Any] | None) -> Options | None:
    """The options to compile with on "cpu", "gpu" or "tpu": defaults, and ``given``, which wins by name.

    None as a value removes a default. A default that only helps also gives way to the environment's ``XLA_FLAGS``.
    """
    flags = set(re.findall(r"--([a-z0-9_]+)", os.environ.get("XLA_FLAGS", "")))
    helpful = {name: value for name, value in _helpful(platform).items() if name not in flags}
    asked = {**_NEEDED.get(platform, {}), **helpful, **(given or {})}
    return {name: value for name, value in asked.items() if value is not None} or None


def check_options(given: Mapping[str, Any] | None, platform: str) -> None:
    """Raises ``SbpError`` where XLA refuses a name or a value, before any time is spent on a plan.

    XLA has no list of its options to ask; it reads them when it compiles. So a function that does nothing is compiled.
    """
    asked = {name: value for name, value in (given or {}).items() if value is not None}
    refused = _refusal(platform, tuple(sorted(asked.items()))) if asked else None
    if refused is None:
        return
    named = next((name for name in asked if re.search(rf"\b{re.escape(name)}\b", refused)), None)
    shown = f"compiler_options={asked!r}" if named is None else f"compiler_options={{{named!r}: {asked[named]!r}}}"
    raise SbpError(
        f"{shown}: XLA for {platform} (jax {jax.__version__}) does not take it: {refused}. " + _advice(named, asked)
    )


@functools.lru_cache(maxsize=64)
def _refusal(platform: str, items: tuple[tuple[str, Any], ...]) -> str | None:
    """What XLA says against these options; None if it takes them."""

    def nothing() -> int:
        return 0

    try:
        device = jax.local_devices(backend=platform)[0]
        with jax.default_device(device):
            jax.jit(nothing, compiler_options=dict(items)).lower().compile()
    except (jax.errors.JaxRuntimeError, TypeError, ValueError) as error:
        # JAX reads a few itself ("optimization_level"), with errors of Python's own.
        return " ".join(str(error).split()).removeprefix("INVALID_ARGUMENT: ").rstrip(".")
    return None


def _advice(name: str | None, asked: Mapping[str, Any]) -> str:
    known = sorted({*_NEEDED["cpu"], *_helpful("gpu")})
    close = difflib.get_close_matches(name or "", known, 1, 0.75)
    hint = f" Did you mean {close[0]!r}?" if close and close[0] != name else ""
    return (
        "Names are XLA's flags without the dashes, and differ between versions of jaxlib; values are True or False "
        'for flags that are on or off, numbers, or the text that XLA_FLAGS would have ("a,b" for a list).' + hint
    )
