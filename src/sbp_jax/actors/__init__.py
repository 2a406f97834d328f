"""Actors, registers and messages: stages of work that run when their inputs are there and a register is free.

The runtime of OneFlow (arXiv 2110.15032, sections 4 and 5) in threads of one process.
"""

from .check import check as check
from .check import registers_needed as registers_needed
from .graph import KINDS as KINDS
from .graph import Actor as Actor
from .graph import ActorGraph as ActorGraph
from .record import Record as Record
from .runtime import Runtime as Runtime
from .runtime import run as run
from .span import Slice as Slice
from .span import Span as Span
from .stream import Stream as Stream
from .stream import stream as stream
