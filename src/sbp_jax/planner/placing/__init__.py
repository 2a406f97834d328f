"""Placing whole ops on unlike devices: the graph, the devices, the simulator, and a method in each file."""

from . import (
    baselines,
    colocrl,
    dnn_partitioning,
    ftpipe,
    gdp,
    hdp,
    heft,
    heterps,
    neo_tables,
    pesto,
    placeto,
    regal,
    spotlight,
    tapp,
)
from .devices import Devices as Devices
from .from_program import Placeable as Placeable
from .from_program import Steps as Steps
from .from_program import placeable as placeable
from .from_program import results_of as results_of
from .from_program import sources as sources
from .from_program import steps_of as steps_of
from .graph import OpGraph as OpGraph
from .graph import Tensor as Tensor
from .policy import Policy as Policy
from .samples import sample_graph as sample_graph
from .simulate import Simulator as Simulator
from .simulate import Timeline as Timeline
from .simulate import Transfer as Transfer
from .task import Cut as Cut
from .task import Placing as Placing
from .task import PlacingTask as PlacingTask
from .task import finished as finished
