"""The pictures of a plan's report: cost by layer, memory over the step."""

from collections.abc import Sequence

from ..plan import PlanData
from . import svg
from .facts import Facts
from .layers import Row
from .summary import ByKind
from .units import brief_bytes, human_seconds, percent

_MOST_ROWS = 18
_POINTS = 360


def important(layers: Sequence[Row], most: int = _MOST_ROWS) -> list[Row]:
    """The layers that matter, in their order."""
    weight = {id(r): r.compute_seconds + r.boxing_seconds for r in layers}
    chosen = {id(r) for r in sorted(layers, key=lambda r: -weight[id(r)])[:most] if weight[id(r)] > 1e-12}
    return [r for r in layers if id(r) in chosen]


def costs(layers: Sequence[Row], facts: Facts | None) -> str:
    """A bar for each layer: compute by phase, then what is waited for; the outline is all of its boxing. Those that
    matter little are one."""
    shown = important(layers)
    rest = [r for r in layers if r not in shown and r.compute_seconds + r.boxing_seconds]
    if rest:
        shown.append(_together(rest))
    left, right, high, step = 210.0, 150.0, 26.0, 15.0
    width = 960.0
    most = max([r.compute_seconds + max(r.exposed_seconds, r.boxing_seconds) for r in shown], default=0.0) or 1.0
    scale = (width - left - right) / most
    parts: list[str] = []
    for k, r in enumerate(shown):
        y = 6 + k * high
        parts.append(svg.text(left - 8, y + 12, svg.shorten(r.title, 32), size=12, anchor="end"))
        x = left
        for phase, css in (("forward", "compute"), ("backward", "back"), ("update", "update")):
            w = r.compute[phase] * scale
            if w > 0:
                title = f"{r.title}: {phase} computes {human_seconds(r.compute[phase])}"
                parts.append(svg.rect(x, y, max(w, 0.6), step, css=css, title=title))
            x += w
        if facts is not None and r.exposed_seconds:
            title = f"{r.title}: waits {human_seconds(r.exposed_seconds)} for data"
            parts.append(svg.rect(x, y, max(0.6, r.exposed_seconds * scale), step, css="wait", title=title))
        if r.boxing_seconds:
            title = f"{r.title}: boxing takes {human_seconds(r.boxing_seconds)} in all, overlapped or not"
            parts.append(svg.rect(x, y - 1, max(1.0, r.boxing_seconds * scale), step + 2, css="hidden", title=title))
        words = human_seconds(r.compute_seconds)
        if r.boxing_seconds:
            words += f" + {human_seconds(r.boxing_seconds)}"
        end = x + max(r.exposed_seconds, r.boxing_seconds) * scale
        parts.append(svg.text(end + 8, y + 12, words, size=11, css="dim"))
    label = "Seconds a step by layer: " + "; ".join(
        f"{r.title} computes {human_seconds(r.compute_seconds)}, boxing {human_seconds(r.boxing_seconds)}"
        for r in shown
    )
    return svg.image(width, 10 + high * len(shown), label, "".join(parts))


def _together(rows: Sequence[Row]) -> Row:
    """Several rows as one."""
    one = Row(f"{len(rows)} smaller ones", [])
    for r in rows:
        for phase in r.compute:
            one.compute[phase] += r.compute[phase]
            one.boxing[phase] += r.boxing[phase]
        one.exposed_seconds += r.exposed_seconds
    return one


def memory(plan: PlanData, facts: Facts | None, kinds: Sequence[ByKind]) -> str:
    """Bytes held over the step, the limit, the peak and what holds most there."""
    limit = plan.statistics.get("memory_limit_bytes")
    points = list(facts.memory) if facts and facts.memory else [(float(n), b) for n, b in plan.timeline.memory]
    if not points:
        return ""
    end = max(facts.step_seconds if facts else 0.0, points[-1][0]) or 1.0
    width, height, left, bottom, top = 960.0, 270.0, 74.0, 30.0, 46.0
    peak = max(b for _, b in points)
    most = 1.08 * (max(peak, limit) if limit and limit < 3 * peak else peak) or 1.0

    def x(t: float) -> float:
        return left + (width - left - 16) * t / end

    def y(b: float) -> float:
        return height - bottom - (height - bottom - top) * b / most

    line: list[tuple[float, float]] = []
    held = 0.0
    for t, b in _thinned(points, end):
        line += [(x(t), y(held)), (x(t), y(b))] if line else [(x(0.0), y(b))]
        held = b
    line.append((x(end), y(held)))
    parts = [svg.line(left, y(0), width - 16, y(0), css="axis")]
    step = _round_step(most / 4)
    for k in range(1, int(most / step) + 1):
        parts.append(svg.line(left, y(k * step), width - 16, y(k * step), css="axis"))
        parts.append(svg.text(left - 8, y(k * step) + 4, brief_bytes(k * step), size=11, css="dim", anchor="end"))
    parts.append(svg.path(line, "area", [(x(end), y(0)), (x(0.0), y(0))]))
    parts.append(svg.path(line, "curve"))
    at = next(t for t, b in points if b == peak)
    where = x(at)
    if limit and limit <= most:
        parts.append(svg.line(left, y(limit), width - 16, y(limit), css="limit"))
        parts.append(svg.text(left + 4, y(limit) - 6, f"limit {brief_bytes(limit)}", size=11, css="limitword"))
    parts.append(f'<circle cx="{where:.1f}" cy="{y(peak):.1f}" r="4" class="mark"/>')
    largest = f"; most: {kinds[0].kind} {brief_bytes(kinds[0].bytes)}" if kinds else ""
    words = f"peak {brief_bytes(peak)}{largest}"
    # Above the curve, where nothing is.
    near_right = where > width * 0.6
    parts.append(svg.line(where, 20, where, y(peak) - 5, css="axis"))
    parts.append(
        svg.text(where + (-6 if near_right else 6), 24, words, size=12, anchor="end" if near_right else "start")
    )
    ends = human_seconds(end) if facts else f"op {end:.0f}"
    parts.append(svg.text(left, height - 10, "0", size=11, css="dim"))
    parts.append(svg.text(width - 16, height - 10, ends, size=11, css="dim", anchor="end"))
    parts.append(svg.text((left + width) / 2, height - 10, "time in the step", size=11, css="dim", anchor="middle"))
    label = f"Memory of a device over the step: {words}" + (f"; the limit is {brief_bytes(limit)}" if limit else "")
    return svg.image(width, height, label, "".join(parts), "full")


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, ... 500 of a unit of bytes that is at least so many."""
    unit = 1.0
    while unit * 1000 < least:
        unit *= 1024
    return next((unit * k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500) if unit * k >= least), unit * 1024)


def _thinned(points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """At most some hundred points, with the largest of each stretch of time."""
    buckets: dict[int, list[tuple[float, float]]] = {}
    for t, b in points:
        buckets.setdefault(int(_POINTS * t / end), []).append((t, b))
    found: list[tuple[float, float]] = []
    for some in buckets.values():
        peak = max(some, key=lambda p: p[1])
        found += [peak] if peak is some[-1] else [peak, some[-1]]
    return found


def stack(kinds: Sequence[ByKind], whole: float) -> str:
    """What is held at the peak as one bar."""
    width, x = 960.0, 0.0
    parts: list[str] = []
    for k, kind in enumerate(kinds):
        w = width * kind.bytes / whole if whole else 0.0
        title = f"{kind.kind}: {brief_bytes(kind.bytes)}, {percent(kind.bytes, whole)}"
        parts.append(svg.rect(x, 0, max(0.0, w - 1.5), 22, css=f"k{min(k, 7)}", title=title))
        if w > 7.5 * len(kind.kind) + 10:
            parts.append(svg.text(x + 7, 15, kind.kind, size=12, css="on"))
        x += w
    label = "Held at the peak: " + ", ".join(f"{k.kind} {brief_bytes(k.bytes)}" for k in kinds)
    return svg.image(width, 22, label, "".join(parts), "full")
