"""Program + placement -> plan: factor maps, cells, classes, the 0-1 program, its solution spelled out."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .. import boxing
from ..cluster import Cluster
from ..errors import PlanError, SignatureError
from ..placement import Placement
from ..plan import Boxing, Leaf, Move, PlanData
from ..rules import Factors, lookup
from ..rules.widen import Code, Strategy, code_of, signature_of, strategies
from ..signature import Signature, local_shape, signature_for
from ..trace import Op, Program, Value, user_line
from .cells import Cell, Folded, factor_map, fold
from .classes import classes
from .cost import CostModel
from .partials import partial_kinds
from .problem import assemble
from .solve import solve


@dataclass(frozen=True, slots=True)
class Request:
    """What the planner is asked: the mesh, its hardware, and what the user has fixed already.

    ``pins`` maps a node's index to the signature its result (an output's operand) must have, with the words to
    name the pin by in an error.
    """

    placement: Placement
    cluster: Cluster
    pins: dict[int, tuple[Signature, str]] = field(default_factory=dict)
    memory_limit_bytes: float | None = None
    computation_ratio: float | None = None
    gap: float = 0.0
    time_limit: float | None = None
    share_layers: bool = True
    progress: Callable[[str], None] = lambda _: None


def make_plan(program: Program, request: Request, name: str = "function") -> PlanData:
    """The cheapest plan, with its proven bound. Raises ``PlanError`` where pins or memory allow none."""
    start = time.perf_counter()
    sizes = request.placement.shape
    request.progress("reading the rules")
    factors = [factor_map(op) for op in program.nodes]
    kinds = partial_kinds(program, factors)
    folded = fold(program, factors, kinds, sizes, _narrow(program, request))
    request.progress("finding repeated layers")
    cells = folded.cells
    groups = classes(cells, folded.free) if request.share_layers else list(range(len(cells)))
    model = CostModel(request.cluster, sizes, request.computation_ratio)
    request.progress("pricing")
    problem = assemble(cells, groups, model)
    request.progress("solving")
    built = time.perf_counter()
    solution = solve(problem, request.gap, request.time_limit)
    if solution is None:
        raise PlanError(_contradiction(program, request))
    chosen = [cells[i].strategies[solution.choice[k]] for i, k in enumerate(groups)]
    solved = time.perf_counter()
    plan = spell_out(program, folded, chosen, request, model, name)
    plan.solver = "ilp"
    plan.bound = min(solution.bound, plan.objective)
    plan.planning_seconds = time.perf_counter() - start
    plan.statistics = {
        "nodes": len(program.nodes),
        "cells": len(cells),
        "classes": problem.n_classes,
        "kernel": solution.kernel_nodes,
        "variables": solution.variables,
        "build_seconds": built - start,
        "solve_seconds": solved - built,
    }
    return plan


def _narrow(program: Program, request: Request) -> Callable[[Op, Sequence[Strategy]], tuple[Strategy, ...]]:
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


def _contradiction(program: Program, request: Request) -> str:
    pins = "; ".join(f"{words} ({s})" for s, words in request.pins.values())
    return f"no plan satisfies all pins at once: {pins or 'there are none, which is a bug'}"


def fingerprint(program: Program) -> str:
    """A hash of what the program computes: ops, shapes, dtypes, wiring."""
    digest = hashlib.sha256()
    for op in program.nodes:
        digest.update(
            f"{op.name}|{[(x.id if isinstance(x, Value) else str(x)) for x in op.ins]}|"
            f"{[(v.id, v.shape, str(v.dtype)) for v in op.outs]}\n".encode()
        )
    return digest.hexdigest()[:16]


def spell_out(
    program: Program, folded: Folded, chosen: Sequence[Strategy], request: Request, model: CostModel, name: str
) -> PlanData:
    """Cells' strategies as every node's signatures, and every boxing between them."""
    table: dict[tuple[tuple[Code, ...], tuple[Code, ...]], int] = {}
    nodes: list[int] = []
    complete: list[Strategy | None] = []
    for op, f in zip(program.nodes, folded.factors, strict=True):
        if op.index not in folded.cell_of:
            nodes.append(-1)
            complete.append(None)
            continue
        cell = folded.cells[folded.cell_of[op.index]]
        way = _complete(op, f, cell, chosen[cell.index], model.axis_sizes)
        complete.append(way)
        nodes.append(table.setdefault((way.ins, way.outs), len(table)))
    boxings = list(_boxings(program, folded, complete, request, model))
    compute = sum(c.times * model.compute_seconds(c, chosen[c.index]) for c in folded.cells)
    moved = sum(b.seconds * b.times for b in boxings)
    plan = PlanData(
        function=name,
        fingerprint=fingerprint(program),
        placement=request.placement,
        inputs=[_leaf(op, op.outs[0], complete, 1) for op in program.input_ops],
        outputs=[_leaf(op, op.ins[0], complete, 0) for op in program.output_ops],
        strategies=[(tuple(map(signature_of, i)), tuple(map(signature_of, o))) for i, o in table],
        nodes=nodes,
        boxing_list=boxings,
        compute_seconds=compute,
        boxing_seconds=moved,
        memory_per_device=0.0,
        objective=compute + moved,
        bound=0.0,
        cluster=request.cluster.name,
        solver="",
        planning_seconds=0.0,
        unruled=_unruled(program),
    )
    return plan


def _complete(op: Op, f: Factors, cell: Cell, way: Strategy, axis_sizes: tuple[int, ...]) -> Strategy:
    """The op's own strategy: the cell's, with the operands that needed no decision filled in."""
    ins, outs = cell.codes(way, op)
    found = None
    for s in strategies(f, axis_sizes, (True,) * len(f.linear)):
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
    program: Program, folded: Folded, complete: Sequence[Strategy | None], request: Request, model: CostModel
):
    """For each value, how every signature its consumers need comes about."""
    needs: dict[int, dict[Code, Op]] = {}
    for op in program.nodes:
        way = complete[op.index]
        if way is None:
            continue
        for x, code in zip(op.ins, way.ins, strict=True):
            if isinstance(x, Value) and x.id not in folded.free:
                needs.setdefault(x.id, {}).setdefault(code, op)
    count = 0
    for op in program.nodes:
        way = complete[op.index]
        if way is None:
            continue
        for v, made in zip(op.outs, way.outs, strict=True):
            wanted = {c: user for c, user in needs.get(v.id, {}).items() if c != made}
            if not wanted:
                continue
            source = boxing.serve(
                signature_of(made), [signature_of(c) for c in wanted], v.shape, v.itemsize, model.axis_sizes,
                request.cluster,
            )  # fmt: skip
            for code, user in wanted.items():
                dst = signature_of(code)
                route = boxing.route(source[dst], dst, request.placement, v.shape, str(v.dtype), request.cluster)
                names = request.placement.axis_names
                moves = tuple(Move(s.kind, tuple(names[a] for a in s.axes), s.bytes, s.seconds) for s in route.steps)
                yield Boxing(
                    count, v.id, v.name or op.name, v.shape, str(v.dtype), source[dst], dst, moves, v.times,
                    user_line(op.info), user_line(user.info),
                )  # fmt: skip
                count += 1


def pin_signature(value: Value, signature: object, placement: Placement, words: str) -> Signature:
    """A user's pin, checked against the value it is for."""
    try:
        resolved = signature_for(signature, len(value.shape), placement.shape)  # pyright: ignore
        local_shape(value.shape, resolved, placement.shape)
    except SignatureError as error:
        raise SignatureError(f"{words}: {error}") from None
    return resolved
