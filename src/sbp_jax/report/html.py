"""A plan as HTML: the same as its text, with pictures. One page without anything from outside."""

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import PlanError
from ..plan import PlanData
from ..plan.insight import Decision
from ..signature import Signature
from . import pictures, svg
from .facts import Facts
from .flow import component_css, flow, legend
from .layers import Row, rows
from .streams import streams
from .style import CSS
from .summary import Group, argument_groups, at_peak, changes, grouped, lowering, peak_text, proof
from .units import brief_bytes, human_seconds, percent, shape_text, short_line, signed
from .visualize import of_signature, picture

_MOST_BOXINGS = 10
_ALL_BOXINGS = 400
_ALL_ARGUMENTS = 400
_DECISIONS = 14
_TENSORS = 4

# Filters tables where there is something to filter: everything can be read without.
SCRIPT = """
document.querySelectorAll('.sbp input[data-for]').forEach(function(box){
  box.hidden=false;
  box.addEventListener('input',function(){
    var words=box.value.toLowerCase();
    document.querySelectorAll('#'+box.dataset.for+' tbody tr').forEach(function(row){
      row.hidden=row.textContent.toLowerCase().indexOf(words)<0;});});});
"""


def escape(words: object) -> str:
    """Text for HTML."""
    return html.escape(str(words))


def chips(signature: Signature) -> str:
    """A signature as coloured words."""
    inner = "".join(f'<i class="{component_css(c)}">{escape(c)}</i>' for c in signature)
    return f'<span class="sig" title="({escape(signature)})">{inner}</span>'


def table(caption: str, columns: Sequence[str], body: Iterable[Sequence[str]], id: str = "") -> str:
    """A table of ready cells; a column's name that ends in # holds numbers, one that ends in ! code."""
    kinds = ["n" if c.endswith("#") else "mono" if c.endswith("!") else "" for c in columns]
    head = "".join(
        f'<th scope="col"{" class=n" if k == "n" else ""}>{escape(c.rstrip("#!"))}</th>'
        for c, k in zip(columns, kinds, strict=True)
    )
    lines = "".join(
        "<tr>" + "".join(f"<td{f' class={k}' if k else ''}>{x}</td>" for x, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in body
    )
    name = f' id="{id}"' if id else ""
    shown = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table{name}>{shown}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def body(plan: PlanData, facts: Facts | None = None, measured: str = "") -> str:
    """The report without the page around it; ``measured`` is the section of a profile, once there is one."""
    layers = rows(plan, facts.exposed if facts else None)
    kinds = at_peak(plan)
    parts = [_head(plan, facts)]
    if layers:
        parts += [_costs(layers, facts), _streams(plan, facts), measured, _flow(plan, layers), _holders(plan, layers)]
    parts += [_memory(plan, facts, kinds), _moves(plan), _changes(plan, facts)]
    if layers:
        parts.append(_layers(plan, layers, facts))
    parts += [_arguments(plan), _notes(plan)]
    return "".join(p for p in parts if p)


def fragment(plan: PlanData, facts: Facts | None = None, measured: str = "") -> str:
    """The report for a notebook's cell."""
    return svg.fragment(body(plan, facts, measured))


def page(plan: PlanData, facts: Facts | None = None, measured: str = "") -> str:
    """The report as a page of its own."""
    title = f"Plan of {plan.function} on {plan.placement}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{CSS}html{{background:#fff}}"
        "@media (prefers-color-scheme:dark){html{background:#14171b}}body{margin:0;padding:24px 28px}"
        '.sbp{margin:0 auto}</style></head><body><main class="sbp">'
        f"{body(plan, facts, measured)}</main><script>{SCRIPT}</script></body></html>"
    )


def write(plan: PlanData, path: str | Path, facts: Facts | None = None, measured: str = "") -> None:
    """Write the page; ``PlanError`` with the reason where that is not possible."""
    try:
        Path(path).write_text(page(plan, facts, measured), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot write the report to {str(path)!r}: {error.strerror or error}") from error


def _head(plan: PlanData, facts: Facts | None) -> str:
    tiles = [(human_seconds(plan.step_seconds), "a step, predicted without overlap")]
    if facts is not None:
        tiles.append((human_seconds(facts.step_seconds), "a step, simulated with overlap"))
        tiles.append((
            percent(facts.exposed_seconds, facts.step_seconds),
            f"of it waits for data: {human_seconds(facts.exposed_seconds)}",
        ))  # fmt: skip
    tiles += [
        (brief_bytes(plan.bytes_on_wire), "sent by each device"),
        (brief_bytes(plan.memory_per_device), "held by each device at the peak"),
        ("optimal" if not plan.optimality_gap else f"{plan.optimality_gap:.2%}",
         ("proven" if not plan.optimality_gap else "at most from the best possible, proven")
         + (" among even splits" if plan.only_even else "")),
    ]  # fmt: skip
    boxes = "".join(f'<div class="box"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in tiles)
    s = plan.statistics
    counts = ""
    if s:
        counts = (
            f" {s['nodes']:.0f} values and ops folded into {s['clusters']:.0f} decisions, {s['classes']:.0f} different"
            f"; planned in {plan.planning_seconds:.2g} s by {plan.solver}."
        )
    if plan.lowering != "manual":
        counts += f" {lowering(plan)}."
    return (
        f'<h1>Plan of {escape(plan.function)}</h1><p class="sub">{escape(plan.placement)}, costs of '
        f'{escape(plan.cluster)}, {escape(proof(plan))}.{escape(counts)}</p><div class="tiles">{boxes}</div>'
    )


def _costs(layers: Sequence[Row], facts: Facts | None) -> str:
    legend = [("var(--compute)", "forward"), ("var(--back)", "backward"), ("var(--update)", "update")]
    if facts is not None:
        legend.append(("var(--wait)", "waits for data (exposed)"))
    items = "".join(f'<span><s style="background:{c}"></s>{escape(w)}</span>' for c, w in legend)
    items += '<span><s style="border:1.5px solid var(--wait)"></s>all boxing, overlapped or not</span>'
    return (
        '<h2>Where the time goes</h2><p class="sub">A step on each device, by layer: compute + boxing. Layers alike '
        f'are one bar.</p><div class="legend">{items}</div>{pictures.costs(layers, facts)}'
    )


def _streams(plan: PlanData, facts: Facts | None) -> str:
    """What runs when, once it is simulated."""
    picture = streams(plan, facts) if facts is not None else ""
    if not picture:
        return ""
    colours = [("--compute", "", "forward"), ("--back", "", "backward"), ("--update", "", "update"),
               ("--copy", "", "copies on a device"), ("--wait", "", "communication"),
               ("--wait", ";opacity:.18", "compute waits")]  # fmt: skip
    items = "".join(f'<span><s style="background:var({c}){more}"></s>{escape(w)}</span>' for c, more, w in colours)
    return (
        '<h2>When it happens</h2><p class="sub">The simulated step on one device: what its compute stream and each '
        "level of links do over time. Pale: further iterations of a loop.</p>"
        f'<div class="legend">{items}</div>{picture}'
    )


def _flow(plan: PlanData, layers: Sequence[Row]) -> str:
    axes = ", ".join(f"{n}={k}" for n, k in zip(plan.placement.axis_names, plan.placement.shape, strict=True))
    return (
        f'<h2>What is split how</h2><p class="sub">Parameters (left) and what matrix products make (right), one '
        f"component for each mesh axis, outermost first: {escape(axes)}.</p>{legend(plan)}{flow(plan, layers)}"
    )


def _holders(plan: PlanData, layers: Sequence[Row]) -> str:
    """Who holds what, for the tensors that hold most, a signature each."""
    candidates: list[tuple[float, str, Signature, tuple[int, ...]]] = []
    for r in layers:
        for leaf in r.parameters:
            size = math.prod(leaf.shape) * r.count
            candidates.append((size, leaf.path, leaf.signature, leaf.shape))
        candidates += [(math.prod(a.shape), f"{a.op} in {r.name}", a.signature, a.shape) for a in r.activations]
    found: dict[object, tuple[str, Signature, tuple[int, ...]]] = {}
    for _, name, signature, shape in sorted(candidates, key=lambda c: -c[0]):
        found.setdefault((str(signature), len(shape)), (name, signature, shape))
        if len(found) == _TENSORS:
            break
    if not found:
        return ""
    figures = "".join(
        f"<figure><figcaption>{escape(name)} <code>{escape(shape_text(shape))}</code> {chips(signature)}</figcaption>"
        f"{picture(of_signature(signature, plan.placement, shape), name, 52)}</figure>"
        for name, signature, shape in found.values()
    )
    return (
        '<h2>Who holds what</h2><p class="sub">The mesh of devices; in each the tensor\'s outline, filled where the '
        "device holds it. Like colours are the same piece; dashed is a term of a sum.</p>"
        f'<div class="side">{figures}</div>'
    )


def _memory(plan: PlanData, facts: Facts | None, kinds: Sequence[object]) -> str:
    found = at_peak(plan)
    curve = pictures.memory(plan, facts, found)
    if not curve:
        return ""
    rest = [
        [f'<span class="swatch k{min(k, 7)}"></span>{escape(x.kind)}', brief_bytes(x.bytes),
         percent(x.bytes, plan.memory_per_device),
         escape(", ".join(f"{n} {brief_bytes(b)}" for n, b in x.layers[:4]))]
        for k, x in enumerate(found)
    ]  # fmt: skip
    held = table("", ["held at the peak", "bytes#", "share#", "most of it by"], rest) if rest else ""
    bar = pictures.stack(found, plan.memory_per_device) if found else ""
    return f'<h2>Memory</h2><p class="sub">{escape(peak_text(plan))}.</p>{curve}{bar}{held}'


def _boxing_row(g: Group) -> list[str]:
    b = g.first
    return [
        f"{chips(b.src)} → {chips(b.dst)}", escape(b.collective), escape(", ".join(b.axes)),
        f"{escape(svg.shorten(g.value, 34))} <code>{escape(shape_text(b.shape, b.dtype))}</code>", escape(g.layer),
        f"{g.times:.0f}", brief_bytes(g.bytes), human_seconds(g.seconds), escape(g.lines),
    ]  # fmt: skip


_BOXING = ["boxing", "collective", "over", "value", "layer", "times#", "sent#", "time#", "line!"]


def boxings(caption: str, groups: Iterable[Group]) -> str:
    """A table of boxings."""
    return table(caption, _BOXING, map(_boxing_row, groups))


def _moves(plan: PlanData) -> str:
    groups = grouped(plan)
    if not groups:
        return "<h2>Where data moves</h2><p>Nothing moves between devices.</p>"
    top = table("", _BOXING, map(_boxing_row, groups[:_MOST_BOXINGS]))
    rest = groups[_MOST_BOXINGS:]
    more = ""
    if rest:
        shown = rest[:_ALL_BOXINGS]
        left = f" ({len(rest) - len(shown)} smallest left out)" if len(shown) < len(rest) else ""
        more = (
            f"<details><summary>{len(rest)} more, {human_seconds(sum(g.seconds for g in rest))} together{left}"
            '</summary><input type="search" hidden data-for="boxings" placeholder="layer, line, collective …" '
            f'aria-label="filter boxings">{table("", _BOXING, map(_boxing_row, shown), "boxings")}</details>'
        )
    return (
        '<h2>Where data moves</h2><p class="sub">A step on each device, most expensive first. The lines: where the '
        f"value is made, and where it is needed in another signature.</p>{top}{more}"
    )


def _changes(plan: PlanData, facts: Facts | None) -> str:
    found = changes(plan, facts)
    if not found:
        return ""
    return "<h2>What would change it</h2>" + table(
        "", ["with", "the step takes"], [[escape(a), escape(b)] for a, b in found]
    )


def _layers(plan: PlanData, layers: Sequence[Row], facts: Facts | None) -> str:
    blocks = []
    for r in layers:
        numbers = (
            f"computes {human_seconds(r.compute_seconds)}, boxing {human_seconds(r.boxing_seconds)}, sends "
            f"{brief_bytes(r.boxing_bytes)}, keeps {brief_bytes(r.kept_bytes)}, "
            f"holds {brief_bytes(r.peak_bytes)} at the peak"
        )
        if facts is not None:
            numbers += f", waits {human_seconds(r.exposed_seconds)}"
        inner = ""
        if r.parameters:
            inner += table(
                "Parameters of one of them" if r.count > 1 else "Parameters", ["name", "shape!", "signature"],
                [[escape(x.path), escape(shape_text(x.shape, x.dtype)), chips(x.signature)] for x in r.parameters],
            )  # fmt: skip
        moves = grouped(plan, r.boxings)
        if moves:
            inner += table("Boxings of what it makes", _BOXING, map(_boxing_row, moves[:_DECISIONS]))
        inner += _decisions(plan, r)
        members = f"<p class=sub>{escape(', '.join(r.layers))}</p>" if r.count > 1 else ""
        blocks.append(
            f"<details><summary><b>{escape(r.title)}</b>: {escape(numbers)}</summary>{members}{inner}</details>"
        )
    return (
        '<h2>Layer by layer</h2><p class="sub">Open one for its parameters, boxings, and what else each decision could '
        f"have been.</p>{''.join(blocks)}"
    )


def _decisions(plan: PlanData, row: Row) -> str:
    some = [plan.insight.decisions[k] for k in row.decisions]
    some = [d for d in some if d.alternatives]
    some = sorted(some, key=lambda d: -max(d.compute_seconds, d.alternatives[0].seconds))[:_DECISIONS]
    if not some:
        return ""
    return table(
        "Decisions that weigh most, and their cheapest alternatives if only they changed",
        ["what", "line!", "makes", "chosen", "alternatives"],
        [[escape(d.name or d.op), escape(short_line(d.source)),
          f"<code>{escape(shape_text(d.shape, d.dtype))}</code>", chips(d.signature), others(d, 3)] for d in some],
    )  # fmt: skip


def others(d: Decision, most: int) -> str:
    """Alternatives in a cell: signature, seconds and bytes more."""
    found = []
    for a in d.alternatives[:most]:
        css = "more" if a.seconds > 0 else "good"
        words = f'{chips(a.signature)} <span class="{css}">{escape(signed(human_seconds(a.seconds), a.seconds))}</span>'
        if a.peak_bytes:
            words += f" <span class=sub>{escape(signed(brief_bytes(a.peak_bytes), a.peak_bytes))}</span>"
        found.append(words)
    return "<br>".join(found)


def _arguments(plan: PlanData) -> str:
    groups = argument_groups(plan)
    shown = groups[:_ALL_ARGUMENTS]
    inner = table(
        "", ["name", "shape!", "signature", "how many#"],
        [[escape(name), escape(shape_text(leaf.shape, leaf.dtype)), chips(leaf.signature), str(count)]
         for name, leaf, count in shown], "arguments",
    )  # fmt: skip
    left = f", the {len(shown)} largest groups" if len(shown) < len(groups) else ""
    return (
        f"<h2>Arguments</h2><details><summary>{len(plan.inputs)} arguments, alike ones together{left}</summary>"
        '<input type="search" hidden data-for="arguments" placeholder="name, shape, signature …" '
        f'aria-label="filter arguments">{inner}</details>'
    )


def _notes(plan: PlanData) -> str:
    found = plan.notes
    if not found:
        return ""
    return "<h2>Notes</h2><ul>" + "".join(f"<li class=wrap>{escape(x)}</li>" for x in found) + "</ul>"
