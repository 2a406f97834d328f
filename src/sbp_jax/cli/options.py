"""Options that ``plan`` and ``bench`` share: the function and its arguments, the mesh, the planner's settings.

What they mean is read in ``settings.py``: options are said without JAX, for help and completion.
"""

import argparse

from .base import add_traceback

# ``sbp.planner.solvers().of("signatures")``, which to ask would take seconds; a test compares them.
SOLVERS = (
    "accpar", "adaptive_paddle", "alpa", "auto_map", "automap", "data_parallel", "double_recursive", "dp",
    "exhaustive", "flexflow", "greedy", "gspmd", "ilp", "megatron", "neo", "optcnn", "p2", "pase", "roc", "tensoropt",
    "tofu", "zero2", "zero3",
)  # fmt: skip


def add_target(parser: argparse.ArgumentParser, shapes: bool = True) -> None:
    """The function, its example arguments, what is donated."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="the training step, or path/to/file.py:function")
    if shapes:
        parser.add_argument("--shapes", metavar="TEXT", help="its arguments: 'f32[8,128], {w: bf16[4,4]}' (see below)")
    parser.add_argument("--args", metavar="MODULE:FUNCTION", help="or: a function that returns its arguments")
    parser.add_argument("--donate", metavar="I,J", help="arguments whose memory results take over: the training state")
    parser.add_argument("--static", metavar="I,J", help="arguments that are Python values, as jax.jit's static_argnums")
    add_traceback(parser)


def add_mesh(parser: argparse.ArgumentParser) -> None:
    """Where it is planned for, and how."""
    parser.add_argument("--mesh", metavar="AxB", help="the mesh's shape: 8, 2x4, 128x8")
    parser.add_argument("--axes", metavar="A,B", help="the names of its axes (default: dp,tp)")
    parser.add_argument("--devices", type=int, metavar="N", help="or: so many devices; the planner chooses the mesh")
    parser.add_argument("--solver", metavar="NAME", help=f"the search method: {', '.join(SOLVERS)}")
    parser.add_argument("--memory-limit", metavar="SIZE", help="bytes a device may hold: 40GiB, 16e9")
    parser.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[],
        help="a field of sbp.AutoParallelConfig, as time_limit=60 or remat=auto; may be repeated",
    )  # fmt: skip
