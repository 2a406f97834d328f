"""Program + placement -> plan: factor maps, cells, classes, the 0-1 program, its solution spelled out."""

import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .. import boxing
from ..cluster import Cluster
from ..errors import PlanError
from ..placement import Placement
from ..plan import Boxing, Leaf, Move, PlanData
from ..rules import Factors, lookup
from ..rules.widen import Code, Strategy, code_of, signature_of, strategies
from ..signature import Signature
from ..trace import Op, Program, Value, user_line, without_collecting
from .anatomy import anatomy
from .cells import Folded, factor_maps, fold
from .classes import classes
from .cost import CostModel
from .decide import decide
from .memory import Footprint
from .partials import partial_kinds
from .pins import Allowed, Pins, conflict_message, narrow_to_pins
from .problem import Problem, assemble, costless
from .roles import roles
from .solve import solve
from .solvers import Task
from .still import still
from .unsplit import unsplit


@dataclass(frozen=True, slots=True)
class Request:
    """What the planner is asked: the mesh, its hardware, and what the user has fixed already.

    ``pins`` maps a node's index to the signature its result (an output's operand) must have, with the words to
    name the pin by in an error. ``uneven``: whether dims may be split that do not divide (global tensors).
    ``narrow_partial``: whether floats may be narrowed while partial. The others as in ``AutoParallelConfig``.
    """

    placement: Placement
    cluster: Cluster
    pins: dict[int, tuple[Signature, str]] = field(default_factory=dict)
    memory_limit_bytes: float | None = None
    limit_is_firm: bool = True
    computation_ratio: float | None = None
    solver: str = "ilp"
    gap: float = 0.0
    time_limit: float | None = None
    share_layers: bool = True
    uneven: bool = False
    narrow_partial: bool = False
    zero_stage: int | None = None
    prefer_less_memory: bool = False
    wait_seconds: float = 0.0
    trunk_algo: bool = True
    sbp_collector: bool = False
    progress: Callable[[str], None] = lambda _: None


def make_plan(program: Program, request: Request, name: str = "function") -> PlanData:
    """The cheapest plan, with its proven bound. Raises ``PlanError`` where pins or memory allow none."""
    with without_collecting():
        return _make_plan(program, request, name)


def _make_plan(program: Program, request: Request, name: str) -> PlanData:
    start = time.perf_counter()
    sizes = request.placement.shape
    request.progress("reading the rules")
    factors = factor_maps(program, request.narrow_partial)
    kinds = partial_kinds(program, factors)
    allowed = narrow_to_pins(program, request.pins, request.placement)
    plain = request.zero_stage is None and not request.prefer_less_memory
    if request.computation_ratio == 0 and request.solver == "ilp" and plain:
        ways = still(program, factors, kinds, sizes, request.uneven, allowed)
        if ways is not None:
            return _unmoved(program, ways, request, name, start)
    folded = fold(program, factors, kinds, sizes, allowed, request.uneven)
    request.progress("finding repeated layers")
    cells = folded.cells
    groups = classes(cells, folded.free) if request.share_layers else list(range(len(cells)))
    model = CostModel(request.cluster, sizes, request.computation_ratio)
    request.progress("pricing")
    problem = assemble(cells, groups, model, request.wait_seconds, request.trunk_algo, request.sbp_collector)
    footprint = Footprint(problem, program, folded, groups, model)
    built = time.perf_counter()
    request.progress("solving")

    parts = anatomy(program, roles(program, factors), folded, groups, problem, sizes, tuple(request.pins))
    left = None if request.time_limit is None else request.time_limit - (built - start)
    task = Task(problem, footprint, request.memory_limit_bytes, request.gap, left, request.progress, parts)
    decided = decide(task, request)
    if decided is None:

        def possible(pins: Pins) -> bool:
            some = fold(
                program, factors, kinds, sizes, narrow_to_pins(program, pins, request.placement), request.uneven
            )
            numbers = classes(some.cells, some.free) if request.share_layers else list(range(len(some.cells)))
            return solve(costless(assemble(some.cells, numbers, model)), 1.0, request.time_limit) is not None

        raise PlanError(conflict_message(program, request.pins, possible))
    found = decided.found
    plan = spell_out(program, folded, problem, groups, found.solution.choice, footprint, request, model, name)
    plan.notes += decided.notes + unsplit(program, plan)
    plan.solver = decided.solver
    # What the solver minimised; with OneFlow's weights that is not the seconds of a step.
    plan.objective = found.seconds
    plan.bound = min(found.bound, plan.objective)
    plan.planning_seconds = time.perf_counter() - start
    plan.statistics = {
        "nodes": len(program.nodes),
        "cells": len(cells),
        "classes": problem.n_classes,
        "kernel": found.solution.kernel_nodes,
        "variables": found.solution.variables,
        "build_seconds": built - start,
        "solve_seconds": time.perf_counter() - built,
    }
    return plan


def _unmoved(program: Program, ways: Sequence[Strategy | None], request: Request, name: str, start: float) -> PlanData:
    """The plan of strategies that move nothing: its cost is zero, and so is the bound. Memory is not looked at."""
    table, nodes = _tabulate(ways)
    return PlanData(
        function=name, fingerprint="", placement=request.placement,
        inputs=[_leaf(op, op.outs[0], ways, 1) for op in program.input_ops],
        outputs=[_leaf(op, op.ins[0], ways, 0) for op in program.output_ops],
        strategies=table, nodes=nodes, boxing_list=[], compute_seconds=0.0, boxing_seconds=0.0, memory_per_device=0.0,
        objective=0.0, bound=0.0, cluster=request.cluster.name, solver="still",
        planning_seconds=time.perf_counter() - start, unruled=_unruled(program),
    )  # fmt: skip


def _tabulate(
    ways: Sequence[Strategy | None],
) -> tuple[list[tuple[tuple[Signature, ...], tuple[Signature, ...]]], list[int]]:
    """The different strategies as signatures, and by node which of them it has; -1 for none."""
    table: dict[tuple[tuple[Code, ...], tuple[Code, ...]], int] = {}
    nodes = [-1 if w is None else table.setdefault((w.ins, w.outs), len(table)) for w in ways]
    return [(tuple(map(signature_of, i)), tuple(map(signature_of, o))) for i, o in table], nodes


dtype_text = functools.cache(str)


def fingerprint(program: Program) -> str:
    """A hash of what the program computes: ops, shapes, dtypes, wiring."""
    digest = hashlib.sha256()
    for op in program.nodes:
        digest.update(
            f"{op.name}|{[(x.id if isinstance(x, Value) else str(x)) for x in op.ins]}|"
            f"{[(v.id, v.shape, dtype_text(v.dtype)) for v in op.outs]}\n".encode()
        )
    return digest.hexdigest()[:16]


def spell_out(
    program: Program, folded: Folded, problem: Problem, groups: Sequence[int], choice: Sequence[int],
    footprint: Footprint, request: Request, model: CostModel, name: str,
) -> PlanData:  # fmt: skip
    """A choice as a plan: every node's signatures, every boxing between them."""
    chosen = [cell.strategies[choice[k]] for cell, k in zip(folded.cells, groups, strict=True)]
    shared = {made: problem.shared(hub, choice[hub]) for hub, made in problem.hub_source.items()}
    hubs = {
        v.id: shared[groups[c.index], k]
        for c in folded.cells
        for k, v in enumerate(c.outs)
        if (groups[c.index], k) in shared
    }
    complete: list[Strategy | None] = []
    allowed = narrow_to_pins(program, request.pins, request.placement)
    known: dict[object, Strategy] = {}
    pinned = {*request.pins, *(program.input_ops[i].index for i, _ in program.donated)} if request.pins else set()
    for op, f in zip(program.nodes, folded.factors, strict=True):
        if op.index not in folded.cell_of:
            complete.append(None)
            continue
        cell = folded.cells[folded.cell_of[op.index]]
        ins, outs = cell.codes(chosen[cell.index], op)
        key = (id(f), ins, outs, op.index if op.index in pinned else -1)
        if key not in known:
            known[key] = _complete(op, f, ins, outs, request, allowed)
        complete.append(known[key])
    table, nodes = _tabulate(complete)
    boxings = list(_boxings(program, folded, complete, hubs, request, model))
    physical = replace(model, computation_ratio=None)
    compute = sum(
        n * c.times * physical.compute_seconds(c, c.strategies[k])
        for c, n, k in zip(problem.representative, problem.count, choice, strict=False)
    )
    moved = sum(b.seconds * b.times for b in boxings)
    return PlanData(
        function=name,
        fingerprint=fingerprint(program),
        placement=request.placement,
        inputs=[_leaf(op, op.outs[0], complete, 1) for op in program.input_ops],
        outputs=[_leaf(op, op.ins[0], complete, 0) for op in program.output_ops],
        strategies=table,
        nodes=nodes,
        boxing_list=boxings,
        compute_seconds=compute,
        boxing_seconds=moved,
        memory_per_device=float(footprint.over_time(choice).max(initial=0.0)),
        objective=compute + moved,
        bound=0.0,
        cluster=request.cluster.name,
        solver="",
        planning_seconds=0.0,
        unruled=_unruled(program),
    )


def _complete(
    op: Op, f: Factors, ins: tuple[Code | None, ...], outs: tuple[Code, ...], request: Request, allowed: Allowed
) -> Strategy:
    """The op's own strategy: the cell's, with the operands that needed no decision filled in."""
    found = None
    for s in allowed(op, strategies(f, request.placement.shape, (True,) * len(f.linear), request.uneven)):
        if s.outs == outs and all(a is None or a == b for a, b in zip(ins, s.ins, strict=True)):
            if found is None or s.share < found.share:
                found = s
    if found is None:
        raise PlanError(f"internal: no strategy of {op} has operands {ins} and results {outs}")
    return found


def _leaf(op: Op, value: object, complete: Sequence[Strategy | None], side: int) -> Leaf:
    way = complete[op.index]
    code = (way.outs if side else way.ins)[0] if way is not None else ()
    return Leaf(op.label, tuple(value.shape), str(value.dtype), signature_of(code))  # pyright: ignore


def _unruled(program: Program) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for op in program.nodes:
        if op.primitive is not None and lookup(op.name) is None:
            found[op.name, user_line(op.info)] = None
    return list(found)


def _boxings(
    program: Program, folded: Folded, complete: Sequence[Strategy | None], hubs: dict[int, tuple[Code, ...]],
    request: Request, model: CostModel,
) -> Iterator[Boxing]:  # fmt: skip
    """For each value, how every signature its consumers need comes about."""
    needs: dict[int, dict[Code, Op]] = {}
    for op in program.nodes:
        way = complete[op.index]
        for x, code in zip(op.ins, way.ins, strict=True) if way is not None else ():
            if isinstance(x, Value) and x.id not in folded.free:
                needs.setdefault(x.id, {}).setdefault(code, op)
    names = request.placement.axis_names
    count = 0
    # Repeated layers ask the same: by value's looks, what it is made as and wanted as, the routes.
    known: dict[object, list[tuple[Code, Signature, Signature, tuple[Move, ...]]]] = {}
    for op in program.nodes:
        way = complete[op.index]
        for v, made in zip(op.outs, way.outs, strict=True) if way is not None else ():
            wanted = {c: user for c, user in needs.get(v.id, {}).items() if c != made}
            if not wanted:
                continue
            via = hubs.get(v.id, ())
            dtype = dtype_text(v.dtype)
            key = (v.shape, dtype, made, tuple(wanted), via)
            if key not in known:
                known[key] = []
                for code, origin in _sources(v, made, list(wanted), via, model).items():
                    src, dst = signature_of(origin), signature_of(code)
                    route = boxing.route(src, dst, request.placement, v.shape, dtype, request.cluster)
                    moves = tuple(
                        Move(s.kind, tuple(names[a] for a in s.axes), s.dst, s.bytes, s.seconds) for s in route.steps
                    )
                    known[key].append((code, src, dst, moves))
            for code, src, dst, moves in known[key]:
                user = wanted.get(code) or next(iter(wanted.values()))
                yield Boxing(
                    count, v.id, v.name or op.name, v.shape, dtype, src, dst, moves, v.times,
                    user_line(op.info), user_line(user.info),
                )  # fmt: skip
                count += 1


def _sources(
    value: Value, made: Code, wanted: Sequence[Code], via: Sequence[Code], model: CostModel
) -> dict[Code, Code]:
    """By signature needed, the one it is boxed from; with or without the shared ones in between, what is cheaper."""

    def serve(codes: Sequence[Code]) -> tuple[float, dict[Code, Code]]:
        found = boxing.serve(
            signature_of(made), [signature_of(c) for c in codes], value.shape, value.itemsize, model.axis_sizes,
            model.cluster,
        )  # fmt: skip
        pairs = {code_of(dst): code_of(src) for dst, src in found.items()}
        every = list(dict.fromkeys([made, *codes]))
        seconds = model.boxing(value, every)
        return sum(float(seconds[every.index(s), every.index(d)]) for d, s in pairs.items()), pairs

    direct = serve(wanted)
    extra = [c for c in via if c != made and c not in wanted]
    return min(direct, serve([*extra, *wanted]), key=lambda x: x[0])[1] if extra else direct[1]
