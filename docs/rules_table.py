"""Writes docs/rules.md: every primitive with its factor map, what may be partial, and how often it was checked.

``python docs/rules_table.py`` keeps the counts that are in the file, ``--count`` runs the checker and counts anew.
"""

import os
import re
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "rules"))

from rule_cases import CASES, is_key, whole_values
from sbp_jax.rules import Factors, lookup, names
from sbp_jax.rules.check import check
from sbp_jax.rules.once import REASON as ONCE
from sbp_jax.rules.opaque import REASONS
from sbp_jax.rules.user import REGISTERED
from sbp_jax.trace import Op

FILE = HERE / "rules.md"
MESHES = ((2,), (4,), (2, 2))
HEAD = """# Rules

What can be split, and what may stay partial, for every primitive. Made by `make rules`; do not edit.

A factor map names the dims of operands and results as einops does, for one example op. A device that holds its pieces
along a name computes its piece of the results. `_` is a dim (or a part of one) that is not split, `1` one of length 1,
`(a b)` a dim made of two factors of which the slower, `a`, is split first. A name that a result lacks is *reduced*:
what the devices get is partial. *Partial* lists which operands (counted from 0) may be partial, all others whole, and
what the result then is: `0 1: P` takes both at once, `0: P; 1: P` each alone. *Checked* is the number of strategies
that were run piece by piece against the whole (`make soundness` runs random ones on top).

| primitive | factor map | reduced | partial | checked |
|---|---|---|---|---:|
"""


def main() -> None:
    """Write the file."""
    counts = counted() if "--count" in sys.argv else known_counts()
    FILE.write_text(text(counts), encoding="utf-8")
    print(f"{FILE}: {sum(counts.values())} strategies checked")


def known_counts() -> dict[str, int]:
    """The counts in the file as it is."""
    if not FILE.exists():
        return {}
    return {n: int(c) for n, c in re.findall(r"^\| `(\S+)` .*\| (\d+) \|$", FILE.read_text(encoding="utf-8"), re.M)}


def examples() -> dict[str, Op]:
    """By primitive, the op of the soundness cases that has most to show: linearities, then dims that split."""

    def telling(op: Op) -> tuple[int, int]:
        rule = lookup(op.name)
        factors = rule.factors(op) if rule is not None else None
        return (
            (0, 0) if factors is None else (len(factors.linear), len(set(range(len(factors.sizes))) - factors.blocked))
        )

    found: dict[str, Op] = {}
    for function, args in CASES.values():
        for op, _ in whole_values(function, args):
            if op.name not in found or telling(op) > telling(found[op.name]):
                found[op.name] = op
    return found


def counted() -> dict[str, int]:
    """How many strategies of each primitive are right; stops at the first that is not."""
    counts: dict[str, int] = {}
    for name, (function, args) in CASES.items():
        for op, operands in whole_values(function, args):
            if op.primitive is None or any(map(is_key, (*operands, *op.outs))):
                continue
            for mesh in MESHES:
                tried, wrong = check(op, [np.asarray(x) for x in operands], mesh)
                if wrong:
                    raise SystemExit(f"{name}: {wrong[0]}")
                counts[op.name] = counts.get(op.name, 0) + tried
    return counts


def text(counts: dict[str, int]) -> str:
    """The file, given the counts."""
    shown, rows = examples(), []
    by_rule = {lookup(n).factors.__name__: n for n in reversed(shown) if lookup(n)}  # pyright: ignore
    for name in names():
        rule = lookup(name)
        assert rule is not None
        if rule.reason or name.startswith("sbp.") or name in REGISTERED:
            continue
        op = shown.get(name)
        if op is not None:
            factors = rule.factors(op)
            cells = [f"`{notation(factors)}`", reduced(factors), partial(factors)]
        elif rule.factors.__name__ in by_rule:
            cells = [f"as `{by_rule[rule.factors.__name__]}`", "", ""]
        else:
            cells = [(rule.factors.__doc__ or "").split("\n")[0].replace("``", "`"), "", ""]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {counts.get(name, 0)} |")
    reasons = "\n".join(
        f"- {reason}: {', '.join(f'`{n}`' for n in sorted(REASONS) if REASONS[n] == reason)}"
        for reason in dict.fromkeys(REASONS.values())
    )
    once = ", ".join(f"`{n}`" for n in names() if lookup(n).reason == ONCE and "sbp." not in n)  # pyright: ignore
    return (
        f"{HEAD}{chr(10).join(rows)}\n\n## Whole on every device, and why\n\n{reasons}\n\n"
        f"## Run by one device\n\n- {ONCE}: {once}, an `ffi_call` with an effect\n"
    )


def notation(factors: Factors) -> str:
    """``a b, b c -> a c``."""
    free = [f for f in range(len(factors.sizes)) if f not in factors.blocked]
    letter = {f: "abcdefghijklmnopqrstuvwxyz"[k] for k, f in enumerate(free)}

    def dim(made_of: tuple[int, ...]) -> str:
        parts = [letter.get(f, "_") for f in made_of]
        return "1" if not parts else parts[0] if len(parts) == 1 else f"({' '.join(parts)})"

    ins, outs = (", ".join(" ".join(map(dim, dims)) or "()" for dims in side) for side in (factors.ins, factors.outs))
    return f"{ins} -> {outs}".strip()


def reduced(factors: Factors) -> str:
    """``b: P``."""
    free = [f for f in range(len(factors.sizes)) if f not in factors.blocked]
    kinds = {"sum": "P", "max": "P(max)", "min": "P(min)"}
    found = [f"{chr(97 + free.index(f))}: {kinds[op]}" for f, op in factors.reduced if f in free]
    return ", ".join(found)


def partial(factors: Factors) -> str:
    """``0: P; 1: P``."""
    kinds = {"sum": "P", "max": "P(max)", "min": "P(min)"}
    found = []
    for item in factors.linear:
        way = kinds[item.takes] if item.takes == item.gives else f"{kinds[item.takes]} to {kinds[item.gives]}"
        leave = " (with leave)" if item.narrows else ""
        found.append(f"{' '.join(map(str, sorted(item.operands)))}: {way}{leave}")
    return "; ".join(found)


if __name__ == "__main__":
    main()
