"""Which signature every value gets: cost model, 0-1 program, search."""

from .make import Request as Request
from .make import fingerprint as fingerprint
from .make import inner_pins as inner_pins
from .make import make_plan as make_plan
from .make import pin_signature as pin_signature
from .meshes import best_of as best_of
from .meshes import candidates as candidates
from .remat import plan_with_remat as plan_with_remat
from .solvers import solvers as solvers
