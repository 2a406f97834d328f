"""Program + placement -> plan: factor maps, cells, classes, the 0-1 program, its solution spelled out."""

import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import boxing
from ..cluster import Cluster
from ..errors import PlanError, SignatureError
from ..placement import Placement
from ..plan import Boxing, Leaf, Move, PlanData
from ..rules import Factors, lookup
from ..rules.widen import Code, Strategy, code_of, signature_of, strategies
from ..signature import Signature, broadcast, local_shape, signature_for
from ..trace import Op, Program, Value, user_line, without_collecting
from .cells import Folded, factor_maps, fold
from .classes import classes
from .cost import CostModel
from .memory import Footprint, Held, held_values, profile
from .partials import partial_kinds
from .problem import Problem, assemble
from .search import Found
from .solvers import Task
from .solvers import lookup as lookup_solver
from .still import still
from .timeline import Positions, timeline

# What the pins leave of an op's strategies.
Allowed = Callable[[Op, Sequence[Strategy]], tuple[Strategy, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """What the planner is asked: the mesh, its hardware, and what the user has fixed already.

    ``pins`` maps a node's index to the signature its result (an output's operand) must have, with the words to
    name the pin by in an error. ``uneven``: whether dims may be split that do not divide (global tensors).
    ``narrow_partial``: whether floats may be narrowed while partial.
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
    allowed = _narrow(program, request)
    if request.computation_ratio == 0:
        ways = still(program, factors, kinds, sizes, request.uneven, allowed)
        if ways is not None:
            return _unmoved(program, ways, request, name, start)
    folded = fold(program, factors, kinds, sizes, allowed, request.uneven)
    request.progress("finding repeated layers")
    cells = folded.cells
    groups = classes(cells, folded.free) if request.share_layers else list(range(len(cells)))
    model = CostModel(request.cluster, sizes, request.computation_ratio)
    request.progress("pricing")
    problem = assemble(cells, groups, model)
    held = held_values(program, folded)
    built = time.perf_counter()
    request.progress("solving")

    footprint = Footprint(problem, held, folded, groups, model, len(program.nodes))
    task = Task(
        problem, footprint, request.memory_limit_bytes, request.gap, request.time_limit, request.progress
    )  # fmt: skip
    found, note = _fitting(task, request)
    if found is None:
        raise PlanError(_contradiction(request))
    plan = spell_out(program, folded, problem, groups, found.solution.choice, held, request, model, name)
    plan.notes += note
    plan.solver = request.solver
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


def _fitting(task: Task, request: Request) -> tuple[Found | None, list[str]]:
    """The plan that fits. Where the limit is only the device's own, one that does not is better than none."""
    try:
        return lookup_solver(request.solver)(task), []
    except PlanError as error:
        if request.limit_is_firm:
            raise
        return lookup_solver(request.solver)(replace(task, limit_bytes=None)), [
            f"does not fit by the memory model: {error}"
        ]


def _narrow(program: Program, request: Request) -> Allowed:
    """Keeps the strategies that a node's pin allows."""
    codes = {index: (code_of(s), words) for index, (s, words) in request.pins.items()}
    twin = {program.input_ops[i].index: program.output_ops[o].index for i, o in program.donated}

    def allowed(op: Op, ways: Sequence[Strategy]) -> tuple[Strategy, ...]:
        pins = [codes[k] for k in (op.index, twin.get(op.index, -1)) if k in codes]
        if len({code for code, _ in pins}) > 1:
            (a, first), (b, second) = pins[:2]
            raise PlanError(
                f"two pins contradict each other: {first} asks for ({signature_of(a)}), {second} for "
                f"({signature_of(b)}), but a donated argument and the result that replaces it share one signature. "
                "Give both the same, or do not donate the argument"
            )
        for code, words in pins:
            kept = tuple(s for s in ways if (s.outs or s.ins)[0] == code)
            if not kept:
                value = (op.outs or op.ins)[0]
                local_shape(value.shape, signature_of(code), request.placement.shape)
                possible = sorted({str(signature_of((s.outs or s.ins)[0])) for s in ways})
                raise PlanError(f"{words}: ({signature_of(code)}) is not possible for {value}; possible: {possible}")
            ways = kept
        return tuple(ways)

    return allowed


def _contradiction(request: Request) -> str:
    pins = "; ".join(f"{words} ({s})" for s, words in request.pins.values())
    return f"no plan satisfies all pins at once: {pins or 'there are none, which is a bug'}"


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
    held: Sequence[Held], request: Request, model: CostModel, name: str,
) -> PlanData:  # fmt: skip
    """A choice as a plan: every node's signatures, every boxing between them."""
    chosen = [cell.strategies[choice[k]] for cell, k in zip(folded.cells, groups, strict=True)]
    shared = {(group, result): problem.codes[hub][choice[hub]] for hub, (group, result) in problem.hub_source.items()}
    hubs = {
        v.id: shared[groups[c.index], k]
        for c in folded.cells
        for k, v in enumerate(c.outs)
        if (groups[c.index], k) in shared
    }
    complete: list[Strategy | None] = []
    allowed = _narrow(program, request)
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
    positions = Positions(program)
    boxings = list(_boxings(program, folded, complete, hubs, request, model, positions))
    compute = sum(c.times * model.compute_seconds(c, chosen[c.index]) for c in folded.cells)
    moved = sum(b.seconds * b.times for b in boxings)
    codes = {
        v.id: [c]
        for op, w in zip(program.nodes, complete, strict=True)
        if w
        for v, c in zip(op.outs, w.outs, strict=True)
    }
    for b in boxings:
        if b.dst == signature_of(hubs.get(b.value_id, ())):
            codes[b.value_id].append(code_of(b.dst))
    memory = profile(held, codes, model, len(program.nodes))
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
        memory_per_device=float(memory.max(initial=0.0)),
        objective=compute + moved,
        bound=0.0,
        cluster=request.cluster.name,
        solver="",
        planning_seconds=0.0,
        unruled=_unruled(program),
        timeline=timeline(program, folded, groups, chosen, model, positions, memory),
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
    program: Program, folded: Folded, complete: Sequence[Strategy | None], hubs: dict[int, Code], request: Request,
    model: CostModel, positions: Positions,
) -> Iterator[Boxing]:  # fmt: skip
    """For each value, how every signature its consumers need comes about."""
    needs: dict[int, dict[Code, Op]] = {}
    first: dict[tuple[int, Code], int] = {}
    for op in program.nodes:
        way = complete[op.index]
        for x, code in zip(op.ins, way.ins, strict=True) if way is not None else ():
            if isinstance(x, Value) and x.id not in folded.free:
                needs.setdefault(x.id, {}).setdefault(code, op)
                at = positions.needed(op, x.id)
                first[x.id, code] = min(first.get((x.id, code), at), at)
    names = request.placement.axis_names
    count = 0
    for op in program.nodes:
        way = complete[op.index]
        for v, made in zip(op.outs, way.outs, strict=True) if way is not None else ():
            wanted = {c: user for c, user in needs.get(v.id, {}).items() if c != made}
            if not wanted:
                continue
            via = hubs.get(v.id)
            sources = _sources(v, made, list(wanted), via, model)
            for code, origin in sources.items():
                src, dst = signature_of(origin), signature_of(code)
                route = boxing.route(src, dst, request.placement, v.shape, str(v.dtype), request.cluster)
                moves = tuple(
                    Move(s.kind, tuple(names[a] for a in s.axes), s.dst, s.bytes, s.seconds) for s in route.steps
                )
                user = wanted.get(code) or next(iter(wanted.values()))
                # One that others are boxed from is needed by the first of them.
                served = [first[v.id, c] for c in wanted if c == code or _comes_through(c, code, sources)]
                yield Boxing(
                    count, v.id, v.name or op.name, v.shape, str(v.dtype), src, dst, moves, v.times,
                    user_line(op.info), user_line(user.info), positions.made(op, v.id),
                    min(served, default=min(first[v.id, c] for c in wanted)),
                    positions.loop(v.id),
                )  # fmt: skip
                count += 1


def _comes_through(code: Code, via: Code, sources: dict[Code, Code]) -> bool:
    """Whether ``code`` is boxed from ``via``, directly or by others."""
    while code in sources:
        code = sources[code]
        if code == via:
            return True
    return False


def _sources(value: Value, made: Code, wanted: Sequence[Code], via: Code | None, model: CostModel) -> dict[Code, Code]:
    """By signature needed, the one it is boxed from; with or without the shared one in between, what is cheaper."""

    def serve(codes: Sequence[Code]) -> tuple[float, dict[Code, Code]]:
        found = boxing.serve(
            signature_of(made), [signature_of(c) for c in codes], value.shape, value.itemsize, model.axis_sizes,
            model.cluster,
        )  # fmt: skip
        pairs = {code_of(dst): code_of(src) for dst, src in found.items()}
        every = list(dict.fromkeys([made, *codes]))
        seconds = model.boxing(value, every)[0]
        return sum(float(seconds[every.index(s), every.index(d)]) for d, s in pairs.items()), pairs

    direct = serve(wanted)
    if via is None or via == made or via in wanted:
        return direct[1]
    return min(direct, serve([via, *wanted]), key=lambda x: x[0])[1]


def inner_pins(program: Program, placement: Placement) -> dict[int, tuple[Signature, str]]:
    """By node: the pins written inside the function, ``sbp.to_global``."""
    pins: dict[int, tuple[Signature, str]] = {}
    for op in program.nodes:
        if op.name == "sbp.pin":
            name = f"to_global at {user_line(op.info) or 'an unknown line'}"
            pins[op.index] = (pin_signature(op.outs[0].shape, op.params["signature"], placement, name), name)
    return pins


def pin_signature(shape: Sequence[int], signature: Any, placement: Placement, words: str) -> Signature:
    """A user's pin, checked against the shape of the value it is for."""
    try:
        resolved = signature_for(signature, len(shape), placement.shape)
        local_shape(shape, resolved, placement.shape)
    except SignatureError as error:
        raise SignatureError(f"{words}: {error}") from None
    # On an axis of one device every component means the same; plans say B there.
    sizes = placement.shape
    return Signature(tuple(broadcast if n == 1 else c for n, c in zip(sizes, resolved, strict=True)))
