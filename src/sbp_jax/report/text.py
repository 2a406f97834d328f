"""A plan as text: what is split how, where data moves and why, what it costs, what was proven."""

import io
import math
import re
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from ..plan import Boxing, Leaf, PlanData

_WIDTH = 160
_MOST_ROWS = 16


def human_bytes(n: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.4g} {unit}"
        n /= 1024
    return ""


def human_seconds(s: float) -> str:
    """``1.5 ms``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if s >= factor:
            return f"{s / factor:.3g} {unit}"
    return f"{s * 1e9:.3g} ns" if s else "0 s"


def render(plan: PlanData, width: int = _WIDTH) -> str:
    """The whole report as plain text."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, no_color=True, highlight=False, force_jupyter=False, force_terminal=False
    )
    gap = plan.optimality_gap
    proof = "proven optimal" if gap == 0 else f"at most {gap:.2%} from the best possible (proven)"
    console.print(f"Plan of {plan.function} on {plan.placement} (costs: {plan.cluster}), {proof}")
    console.print(
        f"  step {human_seconds(plan.step_seconds)} predicted: compute {human_seconds(plan.compute_seconds)}, "
        f"boxing {human_seconds(plan.boxing_seconds)}; {human_bytes(plan.bytes_on_wire)} sent and "
        f"{human_bytes(plan.memory_per_device)} held by each device"
    )
    s = plan.statistics
    if s:
        console.print(
            f"  planned in {plan.planning_seconds:.2g} s: {s['nodes']:.0f} values and ops folded into {s['cells']:.0f} "
            f"decisions, {s['classes']:.0f} different, {s['variables']:.0f} variables"
        )
    console.print(_arguments(plan.inputs))
    console.print(_moves(plan.boxing_list))
    for primitive, where in plan.unruled:
        console.print(f"  no rule for {primitive}: whole on every device [{where or 'unknown line'}]", markup=False)
    for note in plan.notes:
        console.print(f"  note: {note}", markup=False)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left", pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)  # pyright: ignore[reportArgumentType]
    return table


def pattern(path: str) -> str:
    """A path with its numbers starred, so that layers fold: ``0/layers/3/w`` -> ``0/layers/*/w``.

    The first part says which argument, and stays.
    """
    first, slash, rest = path.partition("/")
    return first + slash + re.sub(r"(?<![A-Za-z])\d+(?![A-Za-z])|(?<=[A-Za-z_])\d+(?=/|$)", "*", rest)


def _arguments(leaves: Iterable[Leaf]) -> Table:
    groups: dict[tuple[str, str, tuple[int, ...], str], int] = {}
    for leaf in leaves:
        key = (pattern(leaf.path), leaf.dtype, leaf.shape, str(leaf.signature))
        groups[key] = groups.get(key, 0) + 1
    table = _table("Arguments", ("name", "left"), ("shape", "left"), ("signature", "left"), ("how many", "right"))
    ordered = sorted(groups.items(), key=lambda kv: -math.prod(kv[0][2]) * kv[1])
    for (name, dtype, shape, signature), count in ordered[:_MOST_ROWS]:
        table.add_row(name, f"{dtype}{list(shape)}", signature, str(count))
    if len(ordered) > _MOST_ROWS:
        table.add_row(f"... {len(ordered) - _MOST_ROWS} smaller groups", "", "", "")
    return table


def _moves(boxings: Iterable[Boxing]) -> Table:
    groups: dict[tuple[str, str, str, str, tuple[int, ...]], list[float]] = {}
    for b in boxings:
        if b.collective == "none":
            continue
        where = (b.user or b.source).split(" (")[0]
        key = (f"({b.src}) -> ({b.dst})", b.collective, ",".join(b.axes), where, b.shape)
        total = groups.setdefault(key, [0.0, 0.0, 0.0])
        total[0] += b.times
        total[1] += b.bytes * b.times
        total[2] += b.seconds * b.times
    table = _table(
        "Where data moves", ("boxing", "left"), ("collective", "left"), ("axes", "left"), ("value", "left"),
        ("times a step", "right"), ("bytes", "right"), ("time", "right"), ("line", "left"),
    )  # fmt: skip
    ordered = sorted(groups.items(), key=lambda kv: -kv[1][2])
    for (change, collective, axes, where, shape), (times, sent, seconds) in ordered[:_MOST_ROWS]:
        table.add_row(
            change, collective, axes, str(list(shape)).replace(" ", ""), f"{times:.0f}", human_bytes(sent),
            human_seconds(seconds), where,
        )  # fmt: skip
    if len(ordered) > _MOST_ROWS:
        rest = ordered[_MOST_ROWS:]
        table.add_row(
            f"... {len(rest)} smaller groups", "", "", "", f"{sum(t[0] for _, t in rest):.0f}",
            human_bytes(sum(t[1] for _, t in rest)), human_seconds(sum(t[2] for _, t in rest)), "",
        )  # fmt: skip
    if not ordered:
        table.add_row("nothing moves between devices", "", "", "", "", "", "", "")
    return table
