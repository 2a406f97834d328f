"""``sbp-jax launch``: the processes of a run, started and watched."""

import argparse

from ..distributed.launch.command import DESCRIPTION, run
from ..distributed.launch.options import EXAMPLES, add_arguments
from .base import Run, command


@command(
    "launch",
    "start a run's processes on this machine",
    EXAMPLES.replace("python -m sbp_jax.distributed.launch", "sbp-jax launch"),
)
def launch(parser: argparse.ArgumentParser) -> Run:
    add_arguments(parser)
    # It needs no JAX, and must not take the seconds of its import.
    parser.set_defaults(needs_face=False)
    return run


launch.__doc__ = DESCRIPTION
