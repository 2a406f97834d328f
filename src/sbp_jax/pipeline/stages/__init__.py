"""Where a model is cut into pipeline stages, and how many devices each gets: plain arrays in, plain values out."""

from .costs import HasDevices as HasDevices
from .costs import StageCosts as StageCosts
from .dp import Stages as Stages
from .dp import plan_stages as plan_stages
from .in_flight import InFlight as InFlight
from .in_flight import in_flight_of as in_flight_of
from .layers import Layers as Layers
from .layers import cluster_layers as cluster_layers
from .submeshes import Submesh as Submesh
from .submeshes import assign as assign
from .submeshes import submesh_options as submesh_options
