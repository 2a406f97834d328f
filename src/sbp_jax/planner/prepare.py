"""A program on a mesh, ready to be searched: factor maps, clusters, classes of clusters, a cost graph, bytes over time.

For a model of many layers that takes as long as the search. Searches of one program for one mesh (without a limit, at
other prices) share it, where the request says so.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ..rules import Factors
from ..signature import ReduceOp, Signature, broadcast
from ..trace import Program
from .costs.assemble import Decisions, assemble
from .costs.cost_graph import CostGraph
from .costs.op_cost import CostModel
from .costs.slack import Slack
from .graph.batch import examples
from .graph.clusters import Clustering, cluster_ops, factor_maps
from .graph.partials import partial_kinds
from .graph.roles import roles
from .graph.symmetry import classes
from .memory.footprint import Footprint
from .methods.node_roles import NodeRoles, node_roles
from .output.alternatives import force
from .pins import Pins, narrow_to_pins
from .request import Request

# What of a request the graph hangs on.
_ASKED = (
    "placement", "cluster", "pins", "forced", "computation_ratio", "share_layers", "uneven", "narrow_partial",
    "wait_seconds", "trunk_algo", "sbp_collector",
)  # fmt: skip


@dataclass
class Prepared:
    """All that a search needs of a program, each part made when it is first asked for."""

    program: Program
    request: Request

    def is_for(self, program: Program, request: Request) -> bool:
        """Whether it is of this very program, and the request asks for the same problem."""
        return program is self.program and all(getattr(request, x) == getattr(self.request, x) for x in _ASKED)

    @functools.cached_property
    def factors(self) -> list[Factors]:
        """By node how its rule lets it be split."""
        self.request.progress("reading the rules")
        return factor_maps(self.program, self.request.narrow_partial)

    @functools.cached_property
    def kinds(self) -> dict[int, set[ReduceOp]]:
        """By value the reductions that it may be waiting for."""
        return partial_kinds(self.program, self.factors)

    def clusters(self, pins: Pins) -> tuple[Clustering, list[int]]:
        """Nodes that are decided together, as far as pins let them; and by cluster the class that it is of."""
        asked = self.request
        allowed = narrow_to_pins(self.program, pins, asked.placement)
        found = cluster_ops(self.program, self.factors, self.kinds, asked.placement.shape, allowed, asked.uneven)
        asked.progress("finding repeated layers")
        numbers = classes(found.clusters, found.free) if asked.share_layers else list(range(len(found.clusters)))
        return found, numbers

    @functools.cached_property
    def clustered(self) -> tuple[Clustering, list[int]]:
        """The clusters and classes that the request's own pins allow."""
        return self.clusters(self.request.pins)

    @functools.cached_property
    def model(self) -> CostModel:
        """Seconds of ops and boxings."""
        asked = self.request
        return CostModel(asked.cluster, asked.placement.shape, asked.computation_ratio, asked.uneven)

    def priced(self, slack: Slack | None = None, classes: Sequence[int] | None = None) -> tuple[CostGraph, Decisions]:
        """The cost graph, and what its nodes and choices stand for; with ``slack`` at prices of what sticks out.

        ``classes``: other ones of the same clusters.
        """
        asked, (clustering, known) = self.request, self.clustered
        return assemble(
            self.program, clustering, known if classes is None else classes, self.model, asked.wait_seconds,
            asked.trunk_algo, asked.sbp_collector, slack,
        )  # fmt: skip

    @functools.cached_property
    def _of_the_sum(self) -> tuple[CostGraph, Decisions]:
        self.request.progress("pricing")
        graph, decisions = self.priced()
        force(graph, decisions, self.request.forced)
        return graph, decisions

    @property
    def graph(self) -> CostGraph:
        """What is minimised: the sum of all seconds."""
        return self._of_the_sum[0]

    @property
    def decisions(self) -> Decisions:
        """What the graph's nodes and choices stand for."""
        return self._of_the_sum[1]

    @functools.cached_property
    def whole_bytes(self) -> float:
        """Bytes of all values together, uncut."""
        return sum(float(v.size_bytes) for op in self.program.nodes for v in op.outs)

    @functools.cached_property
    def footprint(self) -> Footprint:
        """The bytes over the step of any choice."""
        limit = self.request.memory_limit_bytes
        return Footprint(self.decisions, self.graph, is_ample=limit is None or self.whole_bytes <= limit)

    @functools.cached_property
    def roles(self) -> NodeRoles:
        """Which of the graph's nodes decide parameters, optimizer state, data and gradients."""
        pins = self.request.pins
        whole = [k for k, (s, _) in pins.items() if isinstance(s, Signature) and set(s) == {broadcast}]
        found = roles(self.program, self.factors, whole)
        batch = examples(self.program, self.factors, found) if found.known else None
        return node_roles(self.decisions, found, tuple(pins), batch)


def prepare(program: Program, request: Request) -> Prepared:
    """The program for the request's mesh and pins; as it was made before, if the request knows of that."""
    for known in request.prepared or ():
        if known.is_for(program, request):
            return known
    made = Prepared(program, request)
    if request.prepared is not None:  # the first one is the program as it is; of others the last one alone is kept
        request.prepared[1:] = [made]
    return made
