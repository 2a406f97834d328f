"""The simulated step as a picture: what each stream does over time."""

from collections.abc import Sequence

from ..plan import PlanData
from . import svg
from .facts import Facts, Span
from .layers import shown_names
from .units import human_seconds

_COMPUTE = "compute"
_PHASES = {"forward": "compute", "backward": "back", "update": "update"}
_WIDTH, _LEFT, _HIGH, _GAP = 960.0, 130.0, 26.0, 12.0
# Narrower than so many pixels, spans that follow each other are drawn as one.
_NARROW = 1.0


def streams(plan: PlanData, facts: Facts) -> str:
    """A row for compute, coloured by phase, and one for each level of links; "" where there is nothing to draw."""
    end = facts.step_seconds
    tracks = [_COMPUTE, *sorted({s.track for s in facts.spans} - {_COMPUTE})]
    if not facts.spans or end <= 0:
        return ""
    scale = (_WIDTH - _LEFT - 16) / end
    names = shown_names(plan)
    parts: list[str] = []
    for k, track in enumerate(tracks):
        y = 6 + k * (_HIGH + _GAP)
        parts.append(svg.text(_LEFT - 8, y + 17, svg.shorten(track, 20), size=12, anchor="end"))
        parts.append(
            svg.rect(_LEFT, y, _WIDTH - _LEFT - 16, _HIGH, css="wait faint" if track == _COMPUTE else "hollow")
        )
        spans = sorted((s for s in facts.spans if s.track == track), key=lambda s: s.start_seconds)
        parts += [svg.rect(_LEFT + x, y, w, _HIGH, css=css, title=title)
                  for x, w, css, title in _drawn(plan, names, spans, scale)]  # fmt: skip
    bottom = 6 + len(tracks) * (_HIGH + _GAP) + 10
    for part in range(5):
        x = _LEFT + (_WIDTH - _LEFT - 16) * part / 4
        anchor = "start" if not part else "end" if part == 4 else "middle"
        parts.append(svg.text(x, bottom, human_seconds(end * part / 4), size=11, css="dim", anchor=anchor))
    busy = ", ".join(f"{level} links busy {human_seconds(s)}" for level, s in sorted(facts.busy.items()))
    label = f"Streams over a step of {human_seconds(end)}: compute {human_seconds(facts.compute_seconds)}, {busy}"
    return svg.image(_WIDTH, bottom + 8, label, "".join(parts), "full")


def _drawn(
    plan: PlanData, names: dict[str, str], spans: Sequence[Span], scale: float
) -> list[tuple[float, float, str, str]]:
    """(x, width, class, words) of the rectangles of a track; narrow neighbours of one colour together."""
    found: list[tuple[float, float, str, str]] = []
    many = 1
    for s in spans:
        css, where = _look(plan, names, s)
        x, w = s.start_seconds * scale, s.seconds * scale
        words = (
            f"{s.name}{f' {s.detail}' if s.detail else ''}{f'; {where}' if where else ''}: {human_seconds(s.seconds)}"
        )
        if found:
            x0, w0, css0, _ = found[-1]
            if css0 == css and x - (x0 + w0) < 0.3 and (w < _NARROW or w0 < _NARROW):
                many += 1
                width = max(x + w - x0, w0)
                found[-1] = (
                    x0,
                    width,
                    css,
                    f"{many} of them{f' in {where}' if where else ''}: {human_seconds(width / scale)}",
                )
                continue
        many = 1
        found.append((x, w, css, words))
    return [(x, max(w, 0.3), css, words) for x, w, css, words in found]


def _look(plan: PlanData, names: dict[str, str], s: Span) -> tuple[str, str]:
    """The class of a span, and where in the model it is."""
    if s.track != _COMPUTE:
        return "link faint" if s.count > 1 else "link", ""
    nodes = plan.insight.node_spots
    if not 0 <= s.node < len(nodes):
        return ("compute faint" if s.count > 1 else "copy"), ""
    spot = plan.insight.spots[nodes[s.node]]
    return _PHASES[spot.phase], f"{names.get(spot.layer, spot.layer)}, {spot.phase}"
