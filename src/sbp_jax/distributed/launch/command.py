"""The command: ``python -m sbp_jax.distributed.launch``, and ``sbp-jax launch``."""

import argparse
import sys
from collections.abc import Sequence

from ...errors import SbpError
from .options import EXAMPLES, add_arguments, check

DESCRIPTION = """\
Start the processes of a run on this machine, and end all of them when one fails.

Each process finds its place in MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK
and NNODES; sbp.distributed.initialize() reads them. The exit code is that of the first process that failed, 128 + the
signal if it was killed, 124 if it hung, 75 if all left by agreement after SIGTERM. With --max_restarts all processes
start again after a failure, as a new generation (SBP_GENERATION) on another port."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: this process's own) and give its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sbp_jax.distributed.launch", description=DESCRIPTION, epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except SbpError as error:
        print(f"sbp_jax.distributed.launch: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace) -> int:
    """Run a parsed command line. Raises ``ProcessError`` for options that cannot be."""
    options = check(args)
    from .supervise import supervise

    return supervise(options)
