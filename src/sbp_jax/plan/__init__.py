"""A plan as data: signatures, moves, the step's timeline, what can be asked of it. No tracing, no planning, no XLA."""

from .data import Lowering as Lowering
from .data import PlanData as PlanData
from .parts import Boxing as Boxing
from .parts import Leaf as Leaf
from .parts import Move as Move
from .parts import Recomputed as Recomputed
from .parts import Rewritten as Rewritten
