"""A step from its plan: what runs when, on a compute stream and one communication stream for each level of links."""

from .engine import simulate as simulate
from .faster_links import with_faster_links as with_faster_links
from .result import Simulation as Simulation
from .trace import Event as Event
