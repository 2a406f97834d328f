"""``sbp-jax plan``: a plan from the command line."""

import argparse
import json
import sys

import shtab

from .base import Run, blaming, check_output, command
from .options import add_mesh, add_target
from .shapes import __doc__ as notation

_FILE = getattr(shtab, "FILE")  # noqa: B009  a plain dict, which pyright takes for a private type


@command(
    "plan",
    "plan a function for a mesh, from shapes alone",
    "  sbp-jax plan examples/step.py:step --args examples/step.py:arrays --donate 0 -o plan.json\n"
    "                                                  for the devices here; the planner chooses the mesh\n"
    "  sbp-jax plan examples/step.py:step --shapes '{up: f32[4096,16384], down: f32[16384,4096]}, f32[64,4096]' \\\n"
    "      --mesh 128x8 --axes dp,tp --cluster h100\n"
    "  sbp-jax plan examples/step.py:step --args examples/step.py:shapes --devices 1024 --cluster h200 \\\n"
    "      --memory-limit 40GiB\n"
    "  sbp-jax plan examples/step.py:step --args examples/step.py:shapes --donate 0 --mesh 8 --cluster h100 \\\n"
    "      --config zero_stage=2 --config time_limit=60 --json\n"
    "\n" + (notation or ""),
)
def plan(parser: argparse.ArgumentParser) -> Run:
    """Plan a training step: how every value is split over the mesh, and where data moves.

    Nothing is computed, only traced, and no device is needed: with --cluster the mesh is one of that hardware.
    """
    add_target(parser)
    add_mesh(parser)
    parser.add_argument("--cluster", metavar="NAME", help="plan for hardware that is not here: h100, or a .toml file")
    output = parser.add_argument("-o", "--output", metavar="FILE", help="save the plan here, as JSON (an old one goes)")
    output.complete = _FILE  # pyright: ignore[reportAttributeAccessIssue]
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    return _plan


def _plan(args: argparse.Namespace) -> None:
    from .settings import read_config, read_placement, read_target
    from .target import parallel

    output = check_output(args.output)
    found = read_target(args)
    where, config = read_placement(args, found), read_config(args, found.config)
    with blaming(found.name):
        made = parallel(found, where, config).plan(*found.args)
    if output is not None:  # first: whoever reads what is printed may stop
        made.save(output)
    print(json.dumps(made.to_json()) if args.json else made)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
