"""Search methods, one file each, behind one interface: ``Task`` in, ``Found`` out, judged on one cost model."""

from . import data_parallel, dp, exhaustive, greedy, ilp, megatron, zero2, zero3
from .experts import fallback as fallback
from .task import Solver as Solver
from .task import Task as Task
from .task import lookup as lookup
from .task import register as register
from .task import solvers as solvers
