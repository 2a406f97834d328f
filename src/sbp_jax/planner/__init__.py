"""Which signature every value gets: cost model, 0-1 program, search."""

from . import methods as methods
from . import placing as placing
from . import ratios as ratios
from .catalogue import solvers as solvers
from .constraints import Among as Among
from .make import make_plan as make_plan
from .meshes import best_of as best_of
from .meshes import candidates as candidates
from .output.indivisible import compare_with_padding as compare_with_padding
from .overlap import hide_boxing as hide_boxing
from .pins import PinError as PinError
from .pins import Pins as Pins
from .pins import inner_pins as inner_pins
from .pins import pin_allows as pin_allows
from .pins import pin_of as pin_of
from .pins import pin_signature as pin_signature
from .remat.search import plan_to_fit as plan_to_fit
from .remat.sparing import plan_again as plan_again
from .request import Request as Request
from .rewrite import as_rewritten as as_rewritten
from .rewrite import follow as follow
from .rewrite import plan_or_rewrite as plan_or_rewrite
