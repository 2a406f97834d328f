"""Seconds and bytes in the planner's notes and errors."""


def seconds_text(x: float) -> str:
    """``1.23 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if x >= scale:
            return f"{x / scale:.3g} {unit}"
    return f"{x / 1e-9:.3g} ns"


def bytes_text(n: float) -> str:
    """``1.5 MiB``; below a KiB ``12 bytes``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(n) >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n:.0f} bytes"
