"""Search methods, one file each, behind one interface: ``Task`` in, ``Found`` out, judged on one cost model."""

from . import data_parallel, dp, exhaustive, greedy, ilp, megatron, published, zero2, zero3
from .experts import fallback as fallback
from .task import Solver as Solver
from .task import Task as Task
