"""A plan as text: by layer what is split how and what it costs, where data moves and why, memory, what was proven."""

import io
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from ..plan import Leaf, PlanData
from .facts import Facts
from .layers import Row, leaf_name, rows
from .summary import argument_groups, at_peak, changes, grouped, local_copies, lowering, peak_text, proof, simulated
from .units import brief, brief_bytes, percent, shape_text
from .units import human_bytes as human_bytes
from .units import human_seconds as human_seconds

WIDTH = 160
_MOST_LAYERS = 20
_MOST_BOXINGS = 10
_MOST_ARGUMENTS = 10
_IN_A_CELL = 6


def render(plan: PlanData, facts: Facts | None = None, width: int = WIDTH) -> str:
    """The whole report as plain text."""
    return plain_text(_parts(plan, facts), width)


def plain_text(parts: Iterable[RenderableType], width: int = WIDTH) -> str:
    """Lines and tables as plain text, in a notebook and on a terminal the same."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, no_color=True, highlight=False, markup=False, force_jupyter=False,
        force_terminal=False,
    )  # fmt: skip
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _parts(plan: PlanData, facts: Facts | None) -> Iterator[RenderableType]:
    yield f"Plan of {plan.function} on {plan.placement} (costs: {plan.cluster}), {proof(plan)}"
    yield (
        f"  step {human_seconds(plan.step_seconds)} predicted: compute {human_seconds(plan.compute_seconds)}, "
        f"boxing {human_seconds(plan.boxing_seconds)}; {human_bytes(plan.bytes_on_wire)} sent and "
        f"{human_bytes(plan.memory_per_device)} held by each device"
    )
    if facts is not None:
        yield f"  step {simulated(facts)}"
    s = plan.statistics
    if s:
        yield (
            f"  planned in {plan.planning_seconds:.2g} s: {s['nodes']:.0f} values and ops folded into {s['cells']:.0f} "
            f"decisions, {s['classes']:.0f} different, {s['variables']:.0f} variables"
        )
    if plan.lowering != "manual":
        yield f"  {lowering(plan)}"
    yield ""
    layers = rows(plan, facts.exposed if facts else None)
    if layers:
        yield _layers(layers, facts is not None)
    yield _arguments(plan.inputs)
    yield _moves(plan)
    if plan.insight.at_peak:
        yield _memory(plan)
    found = changes(plan, facts)
    if found:
        yield _changes(found)
    for primitive, where in plan.unruled:
        yield f"  no rule for {primitive}: whole on every device [{where or 'unknown line'}]"
    for note in plan.notes:
        yield f"  note: {note}"


def table(title: str, *columns: tuple[str, str]) -> Table:
    """A table without frames; columns are (name, "left" or "right")."""
    made = Table(
        title=title, box=box.SIMPLE, title_justify="left", pad_edge=False, padding=(0, 1), min_width=len(title)
    )
    for name, justify in columns:
        made.add_column(name, justify=justify, no_wrap=True)  # pyright: ignore[reportArgumentType]
    return made


def _stacked(lines: list[str]) -> str:
    if len(lines) > _IN_A_CELL:
        lines = [*lines[: _IN_A_CELL - 1], f"... {len(lines) - _IN_A_CELL + 1} more"]
    return "\n".join(lines)


def _weight(row: Row) -> float:
    return row.compute_seconds + row.boxing_seconds + 1e-15 * row.peak_bytes


def _layers(layers: list[Row], has_facts: bool) -> Table:
    waits = [("waits", "right")] if has_facts else []
    made = table(
        "By layer, a step on each device", ("layer", "left"), ("parameters of one", "left"), ("makes", "left"),
        ("compute", "right"), ("boxing", "right"), *waits, ("sent", "right"), ("kept", "right"), ("at peak", "right"),
    )  # fmt: skip
    shown = sorted(layers, key=_weight, reverse=True)[:_MOST_LAYERS]
    chosen = {id(r) for r in shown}
    for r in layers:
        if id(r) not in chosen:
            continue
        ordered = sorted(r.parameters, key=lambda leaf: -len(leaf.shape))
        made.add_row(
            r.title,
            _stacked([f"{leaf_name(x)} {shape_text(x.shape)} {brief(x.signature)}" for x in ordered]),
            _stacked([f"{shape_text(a.shape)} {brief(a.signature)}" for a in r.activations]),
            human_seconds(r.compute_seconds), human_seconds(r.boxing_seconds),
            *([human_seconds(r.exposed_seconds)] if has_facts else []), brief_bytes(r.boxing_bytes),
            brief_bytes(r.kept_bytes), brief_bytes(r.peak_bytes),
        )  # fmt: skip
    rest = [r for r in layers if id(r) not in chosen]
    for words, some in ((f"... {len(rest)} smaller ones", rest), ("all", layers)):
        if some:
            made.add_row(
                words, "", "", human_seconds(sum(r.compute_seconds for r in some)),
                human_seconds(sum(r.boxing_seconds for r in some)),
                *([human_seconds(sum(r.exposed_seconds for r in some))] if has_facts else []),
                brief_bytes(sum(r.boxing_bytes for r in some)), brief_bytes(sum(r.kept_bytes for r in some)),
                brief_bytes(sum(r.peak_bytes for r in some)),
            )  # fmt: skip
    return made


def _arguments(leaves: Iterable[Leaf]) -> Table:
    made = table("Arguments", ("name", "left"), ("shape", "left"), ("signature", "left"), ("how many", "right"))
    groups = argument_groups(leaves)
    for name, leaf, count in groups[:_MOST_ARGUMENTS]:
        made.add_row(name, shape_text(leaf.shape, leaf.dtype), str(leaf.signature), str(count))
    if len(groups) > _MOST_ARGUMENTS:
        made.add_row(f"... {len(groups) - _MOST_ARGUMENTS} smaller groups", "", "", "")
    return made


def _moves(plan: PlanData) -> Table:
    made = table(
        "Where data moves, most expensive first", ("boxing", "left"), ("collective", "left"), ("over", "left"),
        ("value", "left"), ("in", "left"), ("times", "right"), ("sent", "right"), ("time", "right"), ("line", "left"),
    )  # fmt: skip
    groups = grouped(plan)
    for g in groups[:_MOST_BOXINGS]:
        b = g.first
        made.add_row(
            g.change, b.collective, ",".join(b.axes), shape_text(b.shape, b.dtype), g.layer, f"{g.times:.0f}",
            brief_bytes(g.bytes), human_seconds(g.seconds), g.lines,
        )  # fmt: skip
    rest = groups[_MOST_BOXINGS:]
    if rest:
        made.add_row(
            f"... {len(rest)} smaller groups", "", "", "", "", f"{sum(g.times for g in rest):.0f}",
            brief_bytes(sum(g.bytes for g in rest)), human_seconds(sum(g.seconds for g in rest)), "",
        )  # fmt: skip
    copies, seconds = local_copies(plan.boxing_list)
    if copies:
        made.add_row("copies on a device", "", "", "", "", f"{copies:.0f}", "0 B", human_seconds(seconds), "")
    if plan.boxing_list:
        times = sum(b.times for b in plan.boxing_list)
        total = brief_bytes(plan.bytes_on_wire), human_seconds(plan.boxing_seconds)
        made.add_row("all", "", "", "", "", f"{times:.0f}", *total, "")
    else:
        made.add_row("nothing moves between devices", *[""] * 8)
    return made


def _memory(plan: PlanData) -> Table:
    made = table(
        f"Memory of a device: {peak_text(plan)}", ("held at the peak", "left"), ("bytes", "right"), ("", "right"),
        ("most of it by", "left"),
    )  # fmt: skip
    for kind in at_peak(plan):
        layers = ", ".join(f"{name} {brief_bytes(held)}" for name, held in kind.layers[:3])
        made.add_row(kind.kind, brief_bytes(kind.bytes), percent(kind.bytes, plan.memory_per_device), layers)
    return made


def _changes(found: list[tuple[str, str]]) -> Table:
    made = table("What would change with other hardware", ("with", "left"), ("the step takes", "left"))
    for what, comes in found:
        made.add_row(what, comes)
    return made
