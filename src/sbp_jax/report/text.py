"""A plan as text: by layer what is split how and what it costs, where data moves and why, memory, what was proven."""

import io
import shutil
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType

from ..plan import PlanData
from .facts import Facts
from .grid import Column, Grid
from .layers import Row, leaf_name, rows
from .summary import argument_groups, at_peak, changes, grouped, local_copies, lowering, peak_text, proof, simulated
from .units import brief, brief_bytes, percent, shape_text
from .units import human_bytes as human_bytes
from .units import human_seconds as human_seconds

WIDTH = 160
_NARROWEST = 60
_MOST_LAYERS = 20
_MOST_BOXINGS = 10
_MOST_ARGUMENTS = 10
_IN_A_CELL = 6


def render(plan: PlanData, facts: Facts | None = None, width: int | None = None) -> str:
    """The whole report as plain text."""
    return plain_text(_parts(plan, facts), width)


def plain_text(parts: Iterable[RenderableType], width: int | None = None) -> str:
    """Lines and tables as plain text, as wide as the terminal (at most 160 columns; 160 where there is none)."""
    if width is None:
        width = max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns))
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
            f"  planned in {plan.planning_seconds:.2g} s: {s['nodes']:.0f} values and ops folded into "
            f"{s['clusters']:.0f} decisions, {s['classes']:.0f} different, {s['variables']:.0f} variables"
        )
    if plan.lowering != "manual":
        yield f"  {lowering(plan)}"
    yield ""
    layers = rows(plan, facts.exposed if facts else None)
    if layers:
        yield _layers(layers, facts is not None)
    yield _arguments(plan)
    yield _moves(plan, facts)
    if plan.insight.at_peak:
        yield _memory(plan)
    found = changes(plan, facts)
    if found:
        yield _changes(found)
    for note in plan.notes:
        yield f"  note: {note}"


def _stacked(lines: list[str]) -> str:
    if len(lines) > _IN_A_CELL:
        lines = [*lines[: _IN_A_CELL - 1], f"... {len(lines) - _IN_A_CELL + 1} more"]
    return "\n".join(lines)


def _weight(row: Row) -> float:
    return row.compute_seconds + row.boxing_seconds + 1e-15 * row.peak_bytes


def _layers(layers: list[Row], has_facts: bool) -> Grid:
    waits = [Column("waits", "right", 4)] if has_facts else []
    made = Grid(
        "By layer, a step on each device", Column("layer", wrap=20), Column("parameters of one", drop=2, wrap=22),
        Column("makes", drop=6, wrap=18), Column("compute", "right"), Column("boxing", "right"), *waits,
        Column("sent", "right", 3), Column("kept", "right", 7), Column("at peak", "right", 5),
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


def _arguments(plan: PlanData) -> Grid:
    made = Grid(
        "Arguments",
        Column("name", wrap=24),
        Column("shape", wrap=16),
        Column("signature"),
        Column("how many", "right", 1),
    )
    groups = argument_groups(plan)
    for name, leaf, count in groups[:_MOST_ARGUMENTS]:
        made.add_row(name, shape_text(leaf.shape, leaf.dtype), str(leaf.signature), str(count))
    if len(groups) > _MOST_ARGUMENTS:
        made.add_row(f"... {len(groups) - _MOST_ARGUMENTS} smaller groups", "", "", "")
    return made


def _moves(plan: PlanData, facts: Facts | None) -> Grid:
    waits = [Column("waits", "right", 4)] if facts is not None else []
    made = Grid(
        "Where data moves (boxing: communication), most expensive first", Column("boxing"),
        Column("collective", drop=2, wrap=14), Column("over", drop=7), Column("value", drop=5, wrap=18),
        Column("in", drop=3, wrap=16), Column("times", "right", 6), Column("sent", "right", 1), Column("time", "right"),
        *waits, Column("line", wrap=14),
    )  # fmt: skip
    exposed = facts.exposed if facts is not None else {}
    groups = grouped(plan, exposed=exposed)

    def add(words: Sequence[str], line: str, times: float, sent: float, seconds: float, waited: float) -> None:
        waited_text = [human_seconds(waited)] if facts is not None else []
        made.add_row(
            *words, *[""] * (5 - len(words)), f"{times:.0f}", brief_bytes(sent), human_seconds(seconds), *waited_text,
            line,
        )  # fmt: skip

    for g in groups[:_MOST_BOXINGS]:
        b = g.first
        words = g.change, b.collective, ",".join(b.axes), shape_text(b.shape, b.dtype), g.layer
        add(words, g.lines, g.times, g.bytes, g.seconds, g.exposed)
    rest = groups[_MOST_BOXINGS:]
    if rest:
        sums = (sum(getattr(g, name) for g in rest) for name in ("times", "bytes", "seconds", "exposed"))
        add([f"... {len(rest)} smaller groups"], "", *sums)
    copies, seconds = local_copies(plan.boxing_list)
    if copies:
        add(["copies on a device"], "", copies, 0.0, seconds, 0.0)
    if plan.boxing_list:
        times = sum(b.times for b in plan.boxing_list)
        add(["all"], "", times, plan.bytes_on_wire, plan.boxing_seconds, sum(exposed.values()))
    else:
        made.add_row("nothing moves between devices", *[""] * (len(made.columns) - 1))
    return made


def _memory(plan: PlanData) -> Grid:
    made = Grid(
        f"Memory of a device: {peak_text(plan)}", Column("held at the peak"), Column("bytes", "right"),
        Column("share", "right"), Column("most of it by", wrap=24),
    )  # fmt: skip
    for kind in at_peak(plan):
        layers = ", ".join(f"{name} {brief_bytes(held)}" for name, held in kind.layers[:3])
        made.add_row(kind.kind, brief_bytes(kind.bytes), percent(kind.bytes, plan.memory_per_device), layers)
    return made


def _changes(found: list[tuple[str, str]]) -> Grid:
    made = Grid("What would change with other hardware", Column("with", wrap=20), Column("the step takes", wrap=30))
    for what, comes in found:
        made.add_row(what, comes)
    return made
