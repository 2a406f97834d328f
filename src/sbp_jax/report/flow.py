"""The layers in the order they run, coloured by signature, with arrows where data goes."""

from collections.abc import Sequence

from ..plan import PlanData
from ..signature import Broadcast, Component, Partial, Signature, Split
from . import svg
from .layers import Row
from .pictures import important
from .units import brief, shape_text

_MOST_TILES = 14
_WIDTH = 960.0
_LANE = 8.0


def component_css(c: object) -> str:
    """The class that colours one component."""
    return f"s{min(c.dim, 4)}" if isinstance(c, Split) else "p" if isinstance(c, Partial) else "b"


def legend(plan: PlanData) -> str:
    """What the colours and arrows mean: the components that this plan uses."""
    used = {c for ins, outs in plan.strategies for s in (*ins, *outs) for c in s}
    used |= {c for leaf in (*plan.inputs, *plan.outputs) for c in leaf.signature}

    def order(c: Component) -> tuple[int, str]:
        return (c.dim, "") if isinstance(c, Split) else (1000 if isinstance(c, Broadcast) else 1001, str(c))

    words = []
    for c in sorted(used, key=order):
        if isinstance(c, Split):
            meaning = f"dimension {c.dim} is cut{' (rows)' if not c.dim else ''}"
        elif isinstance(c, Partial):
            made = {"sum": "a sum", "max": "a maximum", "min": "a minimum"}.get(c.op, c.op)
            meaning = f"{made} still to be made"
        else:
            meaning = "whole on every device"
        words.append(f'<span><s class="{component_css(c)}"></s>{svg.escape(f"{c}: {meaning}")}</span>')
    arrows = (
        ("flow", "", "read by the next layer"),
        ("arc", "", "read again further on (a skip connection)"),
        ("flow", "M2,3H20V10H8", "repeated: the next block of its kind"),
    )
    for css, way, meaning in arrows:
        drawn = f'<path class="{css}" d="{way or "M1,7H21"}"/>'
        words.append(f"<span>{svg.image(24, 14, f'A line that means: {meaning}', drawn, 'inline')} {meaning}</span>")
    return f'<div class="legend">{"".join(words)}</div>'


def _chips(x: float, y: float, signature: Signature, title: str) -> tuple[str, float]:
    parts: list[str] = []
    for c in signature:
        words = str(c)
        w = 7.0 * len(words) + 7
        parts.append(svg.rect(x, y, w, 16, css=component_css(c), radius=3, title=title))
        over = "b" if isinstance(c, Broadcast) else "on"
        parts.append(svg.text(x + w / 2, y + 11.7, words, size=11, css=f"mono {over}", anchor="middle"))
        x += w + 2
    return "".join(parts), x


def tiles(layers: Sequence[Row]) -> list[list[Row]]:
    """The layers that hold or make something, in their order: those that matter alone, others between them together."""
    rows = [r for r in layers if r.parameters or r.activations]
    large = {id(r) for r in important(rows, _MOST_TILES)}
    found: list[list[Row]] = []
    for r in rows:
        if id(r) not in large and found and id(found[-1][0]) not in large:
            found[-1].append(r)
        else:
            found.append([r])
    return found


def edges(plan: PlanData, shown: Sequence[Sequence[Row]]) -> set[tuple[int, int]]:
    """Pairs of tiles, the first of which makes arrays that the second reads going forward.

    Those that lead back (to weights that are used twice) are left out where data also goes on from there: most are
    repeated blocks.
    """
    spots, decisions = plan.insight.spots, plan.insight.decisions
    tile = {layer: k for k, rows in enumerate(shown) for r in rows for layer in r.layers}

    def tiles_of(k: int) -> set[int]:
        return {tile[s.layer] for s in (spots[i] for i, _ in decisions[k].spots)
                if s.phase == "forward" and s.layer in tile}  # fmt: skip

    found = {
        (a, b)
        for k, d in enumerate(decisions)
        for maker in d.made_by
        if not decisions[maker].name and decisions[maker].shape
        for a in tiles_of(maker)
        for b in tiles_of(k)
        if a != b
    }
    goes_on = {a for a, b in found if a < b}
    return {(a, b) for a, b in found if a < b or a not in goes_on}


def lanes(far: Sequence[tuple[int, int]]) -> dict[int, int]:
    """By tile that is read further on, a lane of its own as long as others are beside it: the shortest inside."""
    ends: dict[int, tuple[int, int]] = {}
    for a, b in far:
        first, last = ends.get(a, (a, a))
        ends[a] = min(first, b), max(last, b)
    found: dict[int, int] = {}
    for a, (first, last) in sorted(ends.items(), key=lambda e: e[1][1] - e[1][0]):
        taken = {lane for other, lane in found.items() if ends[other][0] < last and first < ends[other][1]}
        found[a] = next(k for k in range(len(ends)) if k not in taken)
    return found


def flow(plan: PlanData, layers: Sequence[Row]) -> str:
    """The picture."""
    shown = tiles(layers)
    drawn = edges(plan, shown)
    far = sorted((a, b) for a, b in drawn if b - a != 1)
    lane = lanes(far)
    left = 26.0 + _LANE * (max(lane.values(), default=-1) + 1)
    y = 8.0
    parts: list[str] = []
    spans: list[tuple[float, float]] = []
    for some in shown:
        picture, height = _tile(some, left, y)
        parts.append(picture)
        spans.append((y, y + height))
        y += height + 22
    edge = _WIDTH - 30
    for k, (top, bottom) in enumerate(spans):
        if (k, k + 1) in drawn:
            x = left + 40
            parts.append(svg.line(x, bottom, x, bottom + 16, css="flow"))
            parts.append(svg.path([(x - 4, bottom + 14), (x + 4, bottom + 14)], "head", [(x, bottom + 21)]))
        if len(shown[k]) == 1 and shown[k][0].count > 1:  # the layer after the last is the next of its kind
            parts.append(
                f'<path class="flow" d="M{edge},{bottom - 12:.0f}H{edge + 16}V{top + 14:.0f}H{edge + 5}"/>'
                f'<path class="head" d="M{edge + 7},{top + 10:.0f}V{top + 18:.0f}L{edge},{top + 14:.0f}Z"/>'
            )
    for a, b in far:
        x = left - 14 - _LANE * lane[a]
        start, end = sum(spans[a]) / 2 + 4, sum(spans[b]) / 2 - 4
        parts.append(
            f'<path class="arc" d="M{left},{start:.0f}H{x:.0f}V{end:.0f}H{left - 6}"><title>'
            f"{svg.escape(f'{_name(shown[a])} to {_name(shown[b])}')}</title></path>"
            f'<path class="head" d="M{left - 7},{end - 4:.0f}V{end + 4:.0f}L{left},{end:.0f}Z"/>'
        )
    label = "Layers in the order they run: " + "; ".join(
        f"{r.title} holds {', '.join(brief(p.signature) for p in r.parameters[:4]) or 'no parameters'} and makes "
        f"{', '.join(brief(a.signature) for a in r.activations[:4]) or 'nothing large'}"
        for some in shown
        for r in some
    )
    return svg.image(_WIDTH, max(20.0, y - 14), label, "".join(parts), "full")


def _name(some: Sequence[Row]) -> str:
    return some[0].name if len(some) == 1 else f"{some[0].name} and {len(some) - 1} more"


def _tile(some: Sequence[Row], left: float, y: float) -> tuple[str, float]:
    """A tile and its height: one layer with its signatures, or the names of several small ones."""
    r = some[0]
    ordered = sorted(r.parameters, key=lambda leaf: -len(leaf.shape))[:4]
    made = r.activations[:4]
    height = 34.0 if len(some) > 1 else 20.0 + 20 * max(1, len(ordered), len(made))
    if r.count > 1 and len(some) == 1:
        height = max(height, 48.0)
    parts = [svg.rect(left, y, _WIDTH - left - 30, height, css="tile", radius=7)]
    if len(some) > 1:
        names = ", ".join(r.title for r in some)
        parts.append(svg.text(left + 12, y + 21, svg.shorten(f"{len(some)} smaller: {names}", 120), size=12, css="dim"))
        return f"<g><title>{svg.escape(names)}</title>{''.join(parts)}</g>", height
    parts.append(svg.text(left + 12, y + 21, svg.shorten(r.name, 27), size=13))
    if r.count > 1:
        parts.append(svg.text(left + 12, y + 38, f"{r.count} layers alike", size=11, css="dim"))
    for k, leaf in enumerate(ordered):
        at = y + 10 + 20 * k
        name = leaf.path.rpartition("/")[2]
        title = f"{name} {shape_text(leaf.shape, leaf.dtype)} is held as ({leaf.signature})"
        chips, end = _chips(left + 222, at, leaf.signature, title)
        parts += [chips, svg.text(end + 6, at + 12, f"{svg.shorten(name, 14)} {shape_text(leaf.shape)}", size=11)]
    for k, a in enumerate(made):
        at = y + 10 + 20 * k
        title = f"{a.op} at {a.source} makes {shape_text(a.shape, a.dtype)} as ({a.signature})"
        chips, end = _chips(left + 528, at, a.signature, title)
        parts += [chips, svg.text(end + 6, at + 12, svg.shorten(f"{shape_text(a.shape)} {a.op}", 34), size=11)]
    return "".join(parts), height
