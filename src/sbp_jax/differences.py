"""What differs between two descriptions of a call, in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST = 6
_WIDTH = 60


def differences(before: Mapping[str, Any], now: Mapping[str, Any], show: Callable[[Any], str] = repr) -> list[str]:
    """By name, what is new, gone, or another."""
    told = [f"{k} is new ({shortened(show(now[k]))})" for k in now if k not in before]
    told += [f"{k} is gone ({shortened(show(before[k]))})" for k in before if k not in now]
    for k in now:
        if k in before and _differ(before[k], now[k]):
            was, is_ = both(show(before[k]), show(now[k]))
            told.append(f"{k} was {was}, is {is_}")
    return told


def _differ(a: Any, b: Any) -> bool:
    try:
        return a is not b and (type(a) is not type(b) or not bool(a == b))
    except (TypeError, ValueError):
        return True


def shortened(text: str, start: int = 0) -> str:
    """At most so many characters of a text, from ``start`` on."""
    cut = text[start : start + _WIDTH]
    return f"{'...' if start else ''}{cut}{'...' if start + _WIDTH < len(text) else ''}"


def both(a: str, b: str) -> tuple[str, str]:
    """Two texts, shortened so that what differs is seen. Texts that are equal all through are said to be."""
    if a == b:
        return shortened(a), "another object that prints the same"
    first = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = 0 if max(len(a), len(b)) <= _WIDTH or first < _WIDTH // 2 else first - _WIDTH // 3
    return shortened(a, start), shortened(b, start)


def some(told: Sequence[str]) -> str:
    """The first few."""
    return "; ".join(told[:_MOST]) + (f"; and {len(told) - _MOST} more" if len(told) > _MOST else "")
