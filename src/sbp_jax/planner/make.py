"""Program + placement -> plan: factor maps, clusters, classes, a cost graph, the search, the plan of its choice."""

import copy
import functools
import time
from dataclasses import replace

from ..cluster import to_toml
from ..errors import PlanError
from ..plan import PlanData
from ..trace import Program, without_collecting
from .apart import Grouping, apart
from .budget import Budget
from .costs.assemble import assemble
from .costs.cost_graph import IMPOSSIBLE, costless
from .costs.features import features
from .decide import decide
from .exposed import START_STOPS, shorter, told
from .methods import Task
from .methods.unmoved import unmoved
from .optimize.program import solve
from .output.alternatives import insight
from .output.plan_builder import build_plan, build_unmoved
from .output.repeated import repeated
from .output.unsplit import unsplit
from .pins import PinError, Pins, conflict_message, narrow_to_pins
from .prepare import prepare
from .request import Request
from .versions import versions

# So many seconds of work may be spent on whether some of the pins can be obeyed, for an error that names the others.
_EXPLAIN_SECONDS = 10.0


def make_plan(program: Program, request: Request, name: str = "function") -> PlanData:
    """The cheapest plan, with its proven bound. Raises ``PlanError`` where pins or memory allow none."""
    with without_collecting():
        return _make_plan(program, request, name)


def _make_plan(program: Program, request: Request, name: str) -> PlanData:
    start = time.perf_counter()
    prepared = prepare(program, request)
    plain = request.zero_stage is None and not request.prefer_less_memory
    if request.computation_ratio == 0 and request.solver == "ilp" and plain:
        allowed = narrow_to_pins(program, request.pins, request.placement)
        ways = unmoved(program, prepared.factors, prepared.kinds, request.placement.shape, request.uneven, allowed)
        if ways is not None:
            return build_unmoved(program, ways, request, name, start)
    graph, decisions, footprint = prepared.graph, prepared.decisions, prepared.footprint
    built = time.perf_counter()
    request.progress("solving")
    is_start = request.hides and request.shorter_than is None and not request.thorough
    task = Task(graph, footprint, request.memory_limit_bytes, request.gap, request.budget, request.progress,
                find_roles=lambda: prepared.roles, find_features=lambda: features(decisions, graph),
                thorough=request.thorough, tell_smallest=request.tell_smallest, names_limit=request.names_limit,
                whole_bytes=prepared.whole_bytes,
                clusters_per_class=len(prepared.clustered[0].clusters) / max(decisions.n_classes, 1),
                start_gap=request.start_gap, start_stops=START_STOPS if is_start else (),
                n_axes=len(request.placement.shape), placement=request.placement, cluster=request.cluster)  # fmt: skip
    if request.find_start is not None:
        start_of = functools.partial(request.find_start, graph, decisions, footprint, request.budget)
        task = replace(task, find_start=start_of)
    hidden, before = None, request.budget.spent
    grouping = Grouping(decisions, footprint)
    if request.shorter_than is None:
        decided = decide(task, request)
        may_cut = request.solver == "ilp" and plain and not (is_start or request.forced)
        if decided is not None and may_cut:
            cut = apart(task, decided.found, grouping, lambda classes: prepared.priced(None, classes))
            if cut is not None:
                decided, graph, grouping = replace(decided, found=cut.found), cut.problem, cut.grouping
    else:
        hidden = shorter(program, task, request, request.shorter_than, grouping, prepared.priced,
                         lambda choice, of: build_plan(of.decisions, choice, of.footprint, request, name))  # fmt: skip
        if hidden is None:
            return request.shorter_than
        decided, graph, grouping = hidden.decided, hidden.problem, hidden.grouping
    decisions, footprint = grouping.decisions, grouping.footprint
    solved = time.perf_counter()
    if decided is None:
        longest = max((float(c.min()) for c in graph.nodes), default=0.0)
        if longest >= IMPOSSIBLE / 2:
            raise PlanError(
                f"an op of {name} would take {longest:.3g} s a step on cluster {request.cluster.name!r}, split over "
                f"{request.placement.size} devices as well as it can be; the planner counts to {IMPOSSIBLE / 2:.0f} s. "
                "Name the hardware that it is to run on: AutoParallelConfig(cluster='h100') or "
                "sbp.placement.abstract(..., cluster='h100')"
            )
        if request.forced:
            asked = ", ".join(f"({s})" for s in request.forced.values())
            raise PlanError(f"no plan has {asked} there: other ops cannot follow it")

        def possible(pins: Pins) -> bool:
            # With less work a plan that exists may not be found.
            graph = costless(assemble(program, *prepared.clusters(pins), prepared.model)[0])
            return solve(graph, 1.0, Budget().some(_EXPLAIN_SECONDS)) is not None

        raise PinError(conflict_message(program, request.pins, possible))
    found = decided.found
    choice = found.solution.choice
    plan = build_plan(decisions, choice, footprint, request, name) if hidden is None else hidden.plan
    whole = repeated(program, prepared.factors, plan, request) if request.share_layers else []
    plan.unruled = [(r.primitive, r.where) for r in whole if r.cause != "price"]
    plan.notes += [*found.notes, *unsplit(program, plan, whole, request)]
    plan.solver = decided.solver
    # What the solver minimised; with OneFlow's weights that is not the seconds of a step.
    plan.objective = found.seconds
    plan.bound = min(found.bound, plan.objective)
    if request.share_layers:  # a global tensor's op is planned for itself, and its plan looked at by nobody
        # When it is first asked for: on 67,000 nodes it takes a second. A copy, for the plan must not hold itself.
        plan.make_insight = functools.partial(insight, decisions, graph, choice, footprint, copy.copy(plan))
    plan.hardware = to_toml(request.cluster)
    plan.versions = dict(versions())
    plan.planning_seconds = time.perf_counter() - start
    plan.statistics = {
        "nodes": len(program.nodes),
        "clusters": len(prepared.clustered[0].clusters),
        "classes": decisions.n_classes,
        "kernel": found.solution.kernel_nodes,
        "variables": found.solution.variables,
        "build_seconds": built - start,
        "solve_seconds": solved - built,
        "work": request.budget.spent - before,
    }
    if request.memory_limit_bytes is not None:
        plan.statistics["memory_limit_bytes"] = request.memory_limit_bytes
    if hidden is not None:
        plan.priced = "exposed"
        plan.statistics |= {"simulated_seconds": hidden.seconds, "simulated_seconds_of_sum": hidden.sum_seconds}
        plan.notes.append(told(hidden))
    if found.free_seconds is not None:
        plan.statistics["free_seconds"] = found.free_seconds
    if found.frontier:
        plan.frontier = list(found.frontier)
    if found.memory_is_short:
        plan.statistics["seconds_per_byte"] = found.seconds_per_byte
        plan.byte_prices = dict(found.prices)
    return plan
