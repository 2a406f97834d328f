"""The front door: ``auto_parallel``, ``plan`` and their configuration."""

from .config import AutoParallelConfig as AutoParallelConfig
from .front import auto_parallel as auto_parallel
from .front import plan as plan
from .function import ParallelFunction as ParallelFunction
from .place_ops import Placed as Placed
from .place_ops import place_ops as place_ops
