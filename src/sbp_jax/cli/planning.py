"""``sbp-jax plan``: a plan from the command line."""

import argparse
import json
import sys

import shtab

from .base import Run, blaming, check_output, command
from .options import add_mesh, add_target, read_config, read_placement, read_target
from .shapes import __doc__ as notation
from .target import parallel

_FILE = getattr(shtab, "FILE")  # noqa: B009  a plain dict, which pyright takes for a private type


@command(
    "plan",
    "plan a function for a mesh, from shapes alone",
    "  sbp-jax plan examples/train.py:train_step --args examples/train.py:example_args --donate 0 -o plan.json\n"
    "                                                  for the devices here; the planner chooses the mesh\n"
    "  sbp-jax plan model:step --shapes '{w: f32[4096,4096]}, bf16[64,4096]' --mesh 128x8 --axes dp,tp --cluster h100\n"
    "  sbp-jax plan model:step --args model:shapes --devices 1024 --cluster h200 --memory-limit 40GiB\n"
    "  sbp-jax plan model:step --args model:shapes --mesh 8 --config zero_stage=2 --config time_limit=60 --json\n"
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
    output = check_output(args.output)
    found = read_target(args)
    where, config = read_placement(args, found), read_config(args, found.config)
    with blaming(found.name):
        made = parallel(found, where, config).plan(*found.args)
    print(json.dumps(made.to_json()) if args.json else made)
    if output is not None:
        made.save(output)
        print(f"wrote {output}", file=sys.stderr)
