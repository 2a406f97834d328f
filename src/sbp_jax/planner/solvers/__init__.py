"""Search methods, one file each, behind one interface: ``Task`` in, ``Found`` out, judged on one cost model."""

from . import data_parallel, dp, exhaustive, greedy, ilp, megatron, zero2, zero3
from .base import Solver as Solver
from .base import Task as Task
from .base import lookup as lookup
from .base import register as register
from .base import solvers as solvers
from .experts import fallback as fallback
