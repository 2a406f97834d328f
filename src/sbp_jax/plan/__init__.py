"""A plan as data: signatures, moves, the step's timeline, what can be asked of it. No tracing, no planning, no XLA."""

from .data import Boxing as Boxing
from .data import Leaf as Leaf
from .data import Lowering as Lowering
from .data import Move as Move
from .data import PlanData as PlanData
from .data import Recomputed as Recomputed
from .data import Rewritten as Rewritten
