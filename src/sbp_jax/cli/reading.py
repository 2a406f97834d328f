"""``sbp-jax explain``, ``diff`` and ``html``: saved plans, read."""

import argparse
import json
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shtab

from ..errors import SbpError
from .base import Run, check_output, command

if TYPE_CHECKING:
    from ..step.plan import Plan

_FILE = getattr(shtab, "FILE")  # noqa: B009


def _add_plan(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    parser.add_argument(name, metavar=name.upper(), help=help).complete = _FILE  # pyright: ignore


@command(
    "explain",
    "why a plan is as it is",
    "  sbp-jax explain plan.json                       the plan, as `sbp-jax plan` printed it\n"
    "  sbp-jax explain plan.json 0/layers/3/w          one value, or one layer: 0/layers/3\n"
    "  sbp-jax explain plan.json layers/3 --json",
)
def explain(parser: argparse.ArgumentParser) -> Run:
    """Explain a saved plan, or one value or layer of it: its signature, what that costs, what else there was."""
    _add_plan(parser, "plan", "a plan that `sbp-jax plan -o` or plan.save wrote")
    parser.add_argument("name", nargs="?", help="a value's or layer's name, as the plan's tables say it (default: all)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    return _explain


def _explain(args: argparse.Namespace) -> None:
    plan = _load(args.plan)
    if args.name is None:
        print(json.dumps(plan.to_json()) if args.json else plan)
    else:
        _show(plan.explain(args.name), args.json)


@command(
    "diff",
    "what is different between two plans",
    "  sbp-jax diff before.json after.json             exit code 0 where they are the same, 1 where not\n"
    "  sbp-jax diff before.json after.json --json",
)
def diff(parser: argparse.ArgumentParser) -> Run:
    """Compare two saved plans: what is split otherwise, which moves of data came and went, what it costs."""
    _add_plan(parser, "before", "a saved plan")
    _add_plan(parser, "after", "another one")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    return _diff


def _diff(args: argparse.Namespace) -> int:
    from ..report.diff import diff as compare

    found = compare(_load(args.before), _load(args.after))
    _show(found, args.json)
    return 0 if found.same else 1


@command(
    "html",
    "a plan as a page with pictures",
    "  sbp-jax html plan.json                          plan.html: one file that needs nothing else\n"
    "  sbp-jax html plan.json -o page.html --open      and shows it in the browser",
)
def html(parser: argparse.ArgumentParser) -> Run:
    """Write a saved plan as an HTML page."""
    _add_plan(parser, "plan", "a saved plan")
    output = parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: beside the plan, plan.html; an old one goes)"
    )
    output.complete = _FILE  # pyright: ignore
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    return _html


def _html(args: argparse.Namespace) -> None:
    page = args.output or str(Path(args.plan).with_suffix(".html"))
    check_output(page)
    if Path(page).absolute() == Path(args.plan).absolute():
        raise SbpError(f"--output {page!r} is the plan itself: give another name")
    _load(args.plan).to_html(page)
    print(f"wrote {page}")
    if args.open:
        webbrowser.open(Path(page).absolute().as_uri())


def _load(path: str) -> "Plan":
    from ..step.plan import Plan

    return Plan.load(path)


def _show(found: Any, as_json: bool) -> None:
    to_dict: Callable[[], Any] = found.to_dict
    print(json.dumps(to_dict()) if as_json else found)
