"""Amounts as people write them, read into bytes."""

import re

from .errors import SbpError

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{middle}b": base**power
    for power, letter in enumerate("kmgtp", 1)
    for middle, base in (("", 1000), ("i", 1024))
}


def parse_bytes(text: str, what: str) -> float:
    """``40GiB``, ``16 GB``, ``1.5e9``. Raises ``SbpError`` naming ``what``, an option."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match.group(2) not in _UNITS:
        raise SbpError(f"{what} {text!r}: write bytes with a unit or without: 40GiB (2^30), 40GB (10^9), 16e9")
    return float(match.group(1)) * _UNITS[match.group(2)]
