"""The pictures of these pages, drawn from the library's own data: nothing in them is placed or filled in by hand."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import sbp_jax as sbp

plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sbp_jax", "font.size": 9, "font.family": "sans-serif"})

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
INK = "#333333"


class Svg(str):
    """Text of an SVG that Jupyter and Sphinx show."""

    def _repr_svg_(self) -> str:
        return str(self)


def svg(figure: Any) -> Svg:
    """The figure's SVG; the figure is closed."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return Svg(text[text.index("<svg") :])


class Html(str):
    """HTML that Jupyter and Sphinx show."""

    def _repr_html_(self) -> str:
        return str(self)


def pieces(signatures: Sequence[str], placement: sbp.Placement, shape: tuple[int, int] = (8, 8)) -> Html:
    """What every device holds of a matrix, by several signatures side by side: ``sbp.visualize`` of each."""
    cells = (
        f"<figure style='margin:0'>{sbp.visualize(text, placement, shape)._repr_html_()}"
        f"<figcaption style='text-align:center'><code>{text}</code></figcaption></figure>"
        for text in signatures
    )
    return Html(f"<div style='display:flex;flex-wrap:wrap;gap:1.5em'>{''.join(cells)}</div>")


def flow(steps: Sequence[tuple[str, str]], width: float = 7.5) -> Svg:
    """Boxes one under the other with arrows between: (name, what it is)."""
    figure, axis = plt.subplots(figsize=(width, 0.62 * len(steps)))
    for i, (name, what) in enumerate(steps):
        data = i % 2 == 0
        axis.add_patch(
            FancyBboxPatch(
                (0, -i), 2.1, 0.55, boxstyle="round,pad=0.02", facecolor="#eef3f9" if data else "#fdf1e2",
                edgecolor=COLOURS[0] if data else COLOURS[1],
            )
        )  # fmt: skip
        axis.text(1.05, 0.275 - i, name, ha="center", va="center", weight="bold" if data else "normal")
        axis.text(2.35, 0.275 - i, what, va="center", fontsize=8.5, color=INK)
        if i:
            axis.add_patch(
                FancyArrowPatch((1.05, 1 - i), (1.05, 0.6 - i), arrowstyle="-|>", mutation_scale=9, color=INK)
            )
    axis.set(xlim=(-0.1, 8), ylim=(-len(steps) + 0.9, 0.7))
    axis.axis("off")
    return svg(figure)


def lines(x: Sequence[float], series: dict[str, Sequence[float]], xlabel: str, ylabel: str, log: bool = False) -> Svg:
    """Plain curves."""
    figure, axis = plt.subplots(figsize=(6, 2.8), layout="constrained")
    for (label, y), colour in zip(series.items(), COLOURS, strict=False):
        axis.plot(x, y, marker="o", markersize=3, label=label, color=colour)
    if log:
        axis.set(xscale="log", yscale="log")
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    return svg(figure)


def bars(values: dict[str, dict[str, float]], ylabel: str) -> Svg:
    """Stacked bars: by name, by part."""
    figure, axis = plt.subplots(figsize=(6, 2.8), layout="constrained")
    parts = list(dict.fromkeys(part for stack in values.values() for part in stack))
    base = np.zeros(len(values))
    for part, colour in zip(parts, COLOURS, strict=False):
        heights = np.array([stack.get(part, 0.0) for stack in values.values()])
        axis.bar(list(values), heights, bottom=base, label=part, color=colour, width=0.6)
        base += heights
    axis.set(ylabel=ylabel)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return svg(figure)


def memory(simulation: sbp.Simulation, scale: float = 2**20, unit: str = "MiB") -> Svg:
    """Bytes held by a device over a step."""
    figure, axis = plt.subplots(figsize=(6.5, 2.4), layout="constrained")
    seconds = [1e3 * s for s, _ in simulation.memory]
    held = [b / scale for _, b in simulation.memory]
    axis.step(seconds, held, where="post", color=COLOURS[0])
    axis.fill_between(seconds, held, step="post", alpha=0.2, color=COLOURS[0])
    peak = simulation.peak_memory_bytes / scale
    axis.axhline(peak, color=COLOURS[4], linestyle=":", label=f"peak {peak:.3g} {unit}")
    axis.set(xlabel="ms of the step", ylabel=f"{unit} held", ylim=(0, None))
    axis.legend(frameon=False, loc="lower right")
    return svg(figure)


def streams(simulation: sbp.Simulation) -> Svg:
    """What runs when, a lane for each stream."""
    tracks = ["compute", *sorted(simulation.communication_seconds)]
    figure, axis = plt.subplots(figsize=(6.5, 0.6 + 0.45 * len(tracks)), layout="constrained")
    for event in simulation.events:
        if event.seconds < simulation.step_seconds / 1500:
            continue  # thinner than a line
        lane = tracks.index(event.track)
        axis.barh(lane, 1e3 * event.seconds, left=1e3 * event.start_seconds, height=0.6,
                  color=COLOURS[lane % len(COLOURS)], edgecolor="white", linewidth=0.2)  # fmt: skip
    names = ["compute", *(f"{level} links" for level in tracks[1:])]
    axis.set(yticks=range(len(tracks)), yticklabels=names, xlabel="ms of the step")
    axis.invert_yaxis()
    return svg(figure)


class Table(str):
    """A Markdown table that Jupyter and Sphinx show."""

    def _repr_markdown_(self) -> str:
        return str(self)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Rows under their columns' names."""
    line: Callable[[Sequence[Any]], str] = lambda cells: f"| {' | '.join(map(str, cells))} |"  # noqa: E731
    return Table("\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)]))
