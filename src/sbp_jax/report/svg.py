"""Small pictures as inline SVG: no script, nothing from outside, colours from the style around them."""

import html
from collections.abc import Sequence

from .style import CSS


def fragment(body: str) -> str:
    """Something with its style, to be put into a page that has none of it (a notebook's cell)."""
    return f'<style>{CSS}</style><div class="sbp">{body}</div>'


def escape(words: object) -> str:
    """Text for SVG and HTML."""
    return html.escape(str(words))


def image(width: float, height: float, label: str, body: str, css: str = "") -> str:
    """An SVG that scales down with its page. ``label`` is its name for those who do not see it."""
    name = html.escape(label, quote=True)
    return (
        f'<svg class="{css}" role="img" aria-label="{name}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" xmlns="http://www.w3.org/2000/svg"><title>{html.escape(label)}</title>{body}</svg>'
    )


def rect(
    x: float, y: float, w: float, h: float, css: str = "", radius: float = 0.0, title: str = "", extra: str = ""
) -> str:  # fmt: skip
    """A rectangle; ``title`` is shown when it is pointed at."""
    r = f' rx="{radius:g}"' if radius else ""
    shape = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, w):.1f}" height="{max(0.0, h):.1f}"{r} class="{css}"{extra}'
    )
    return f"{shape}><title>{html.escape(title)}</title></rect>" if title else f"{shape}/>"


def text(x: float, y: float, words: str, size: float = 12, css: str = "", anchor: str = "start") -> str:
    """Words; ``anchor`` start, middle or end."""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" class="{css}"{where}>{html.escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def path(points: Sequence[tuple[float, float]], css: str = "", close: Sequence[tuple[float, float]] = ()) -> str:
    """A line through points; ``close``: the corners that make it an area."""
    d = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in [*points, *close]) + ("Z" if close else "")
    return f'<path d="{d}" class="{css}"/>'


def shorten(words: str, most: int) -> str:
    """At most so many characters, the middle left out."""
    if len(words) <= most:
        return words
    half = (most - 1) // 2
    return f"{words[:half]}…{words[-(most - 1 - half) :]}"
