"""A step from its plan: what runs when, on a compute stream and one communication stream for each level of links."""

from .engine import simulate as simulate
from .result import Event as Event
from .result import Simulation as Simulation
from .waits import waits as waits
from .waits import with_faster_links as with_faster_links
