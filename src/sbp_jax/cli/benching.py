"""``sbp-jax bench``: the planned step against plain data parallelism, on the devices there are."""

import argparse

from .base import Run, command
from .options import add_mesh, add_target


@command(
    "bench",
    "time a planned step against plain jax.jit",
    "  sbp-jax bench examples/step.py:step --args examples/step.py:arrays --donate 0 --mesh 2x4\n"
    "  sbp-jax bench examples/step.py:step --args examples/step.py:arrays --donate 0 --data 1 --steps 50 --json",
)
def bench(parser: argparse.ArgumentParser) -> Run:
    """Run a training step by its plan and by plain jax.jit with data parallelism, on the same devices; compare.

    Data parallelism: the data is split along its first dimension, everything else is whole on every device, and XLA
    adds what that needs. The function of --args makes real arrays. What the last steps return is compared, too.
    """
    add_target(parser, shapes=False)
    add_mesh(parser)
    parser.add_argument("--data", metavar="I,J", help="arguments that are data (default: those not donated)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps to time of each (default: 20)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return _bench


def _bench(args: argparse.Namespace) -> None:
    from .timing import bench as run

    run(args)
