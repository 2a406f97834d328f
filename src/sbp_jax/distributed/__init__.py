"""Several processes, on one machine or many: started together, with collectives between their devices."""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

# The launcher is in this room and needs no JAX; neither does the command line to say its help. In those processes the
# names below come when one of them is asked for.
if "_is_bare" not in globals():
    _is_bare = getattr(_sys.modules[__name__.partition(".")[0]], "_is_bare", False)

if _TYPE_CHECKING or not _is_bare:
    from ..processes import EXIT_STOPPED as EXIT_STOPPED
    from ..processes import World as World
    from ..processes import ask_to_stop as ask_to_stop
    from ..processes import heartbeat as heartbeat
    from ..processes import initialize as initialize
    from ..processes import is_initialized as is_initialized
    from ..processes import leave as leave
    from ..processes import should_stop as should_stop
    from ..processes import shutdown as shutdown
    from .collectives import all_gather as all_gather
    from .collectives import all_gather_into_tensor as all_gather_into_tensor
    from .collectives import all_reduce as all_reduce
    from .collectives import all_to_all as all_to_all
    from .collectives import barrier as barrier
    from .collectives import broadcast as broadcast
    from .collectives import gather as gather
    from .collectives import reduce as reduce
    from .collectives import reduce_scatter as reduce_scatter
    from .collectives import reduce_scatter_tensor as reduce_scatter_tensor
    from .collectives import scatter as scatter
    from .data_parallel import DistributedDataParallel as DistributedDataParallel
    from .point_to_point import recv as recv
    from .point_to_point import send as send
    from .reduce_op import ReduceOp as ReduceOp


def __getattr__(name: str):
    global _is_bare
    if _is_bare and not name.startswith("__"):
        _is_bare = False
        __spec__.loader.exec_module(_sys.modules[__name__])
        return getattr(_sys.modules[__name__], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
