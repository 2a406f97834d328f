"""The front door: ``auto_parallel``, ``plan`` and their configuration."""

from .config import AutoParallelConfig as AutoParallelConfig
from .function import ParallelFunction as ParallelFunction
from .function import auto_parallel as auto_parallel
from .function import plan as plan
