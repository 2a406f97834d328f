"""Numbers as people read them."""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp

from ..pieces import stored_share
from ..placement import Placement
from ..signature import Signature, Split


def human_bytes(n: float, digits: int = 4) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1000 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.{digits}g} {unit}"
        n /= 1024
    return ""


def brief_bytes(n: float) -> str:
    """``62.1 GiB``: three digits, for tables."""
    return human_bytes(n, 3)


def brief(signature: Signature) -> str:
    """``S(0),B``: a signature without spaces, for tables."""
    return str(signature).replace(" ", "")


def human_seconds(s: float) -> str:
    """``1.5 ms``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(s) >= factor:
            return f"{s / factor:.3g} {unit}"
    return "0 s" if not s else "<1 ns" if abs(s) < 1e-9 else f"{s * 1e9:.3g} ns"


def signed(text: str, number: float) -> str:
    """A difference: with its sign, "±0" for none, "~0" for next to none."""
    return "±0" if not number else "~0" if text.startswith("<") else text if number < 0 else f"+{text}"


def percent(part: float, whole: float) -> str:
    """``12 %`` of a whole."""
    return f"{part / whole:.0%}" if whole else "0%"


def shape_text(shape: Sequence[int], dtype: str = "") -> str:
    """``bfloat16[8,128]``."""
    return f"{dtype}[{','.join(map(str, shape))}]"


@functools.cache
def itemsize(dtype: str) -> int:
    """Bytes of an element; of a random key, 8."""
    try:
        return int(jnp.dtype(dtype).itemsize)
    except TypeError:
        return 8


def local_bytes(shape: Sequence[int], dtype: str, signature: Signature, placement: Placement) -> float:
    """What one device stores of a value."""
    code = [c.dim if isinstance(c, Split) else -1 for c in signature]
    return math.prod(shape) * itemsize(dtype) * stored_share(tuple(shape), code, placement.shape)


def short_line(where: str) -> str:
    """``gpt.py:127`` of ``gpt.py:127 (attention)``."""
    return where.split(" (")[0]
