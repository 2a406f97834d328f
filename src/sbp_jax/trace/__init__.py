"""jaxpr -> logical graph."""

from .build import build as build
from .build import handled as handled
from .build import writer as writer
from .canonical import canonical_text as canonical_text
from .constraint import Constraint as Constraint
from .constraint import constraint_of as constraint_of
from .copies import copied as copied
from .fingerprint import fingerprint as fingerprint
from .graph import Atom as Atom
from .graph import Graph as Graph
from .graph import Lit as Lit
from .graph import Op as Op
from .graph import Program as Program
from .graph import Structured as Structured
from .graph import Value as Value
from .nested import is_planned_here as is_planned_here
from .nested import planned_here as planned_here
from .pause import without_collecting as without_collecting
from .pin import pin as pin
from .remat import read_anew as read_anew
from .remat import recompute as recompute
from .scope import Tracer as Tracer
from .source import Lines as Lines
from .source import user_line as user_line
