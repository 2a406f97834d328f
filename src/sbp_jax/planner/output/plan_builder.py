"""A choice as a plan: every node's signatures, every boxing between them, what a device does and holds when."""

import functools
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ... import boxing
from ...errors import InternalError
from ...plan import Boxing, Leaf, Move, PlanData
from ...rules import Factors, lookup
from ...rules.widen import Code, Strategy, code_of, signature_of, strategies
from ...signature import Signature
from ...trace import Op, Program, Value, fingerprint, user_line
from ..costs.assemble import Decisions
from ..costs.op_cost import CostModel
from ..graph.clusters import Clustering
from ..memory.footprint import Footprint
from ..pins import Allowed, narrow_to_pins
from ..request import Request
from .timeline import Positions, kernel_seconds, timeline


def build_unmoved(
    program: Program, ways: Sequence[Strategy | None], request: Request, name: str, start: float
) -> PlanData:
    """The plan of strategies that move nothing: its cost is zero, and so is the bound. Memory is not looked at."""
    table, nodes, _ = _tabulate(ways)
    return PlanData(
        function=name, fingerprint="", placement=request.placement,
        inputs=[_leaf(op, op.outs[0], ways, 1) for op in program.input_ops],
        outputs=[_leaf(op, op.ins[0], ways, 0) for op in program.output_ops],
        strategies=table, nodes=nodes, boxing_list=[], compute_seconds=0.0, boxing_seconds=0.0, memory_per_device=0.0,
        objective=0.0, bound=0.0, cluster=request.cluster.name, solver="unmoved",
        planning_seconds=time.perf_counter() - start, unruled=_unruled(program),
        argument_names=list(program.argument_names),
    )  # fmt: skip


def _tabulate(
    ways: Sequence[Strategy | None],
) -> tuple[list[tuple[tuple[Signature, ...], tuple[Signature, ...]]], list[int], list[Strategy]]:
    """The different strategies as signatures, by node which of them it has (-1 for none), and one of each."""
    table: dict[tuple[tuple[Code, ...], tuple[Code, ...]], int] = {}
    known: dict[int, int] = {id(None): -1}
    examples: list[Strategy] = []
    nodes: list[int] = []
    for way in ways:
        number = known.get(id(way))
        if number is None and way is not None:
            number = known[id(way)] = table.setdefault((way.ins, way.outs), len(table))
            if number == len(examples):
                examples.append(way)
        nodes.append(-1 if number is None else number)
    return [(tuple(map(signature_of, i)), tuple(map(signature_of, o))) for i, o in table], nodes, examples


dtype_text = functools.cache(str)


def build_plan(
    decisions: Decisions, choice: Sequence[int], footprint: Footprint, request: Request, name: str
) -> PlanData:
    """A choice as a plan: every node's signatures, every boxing between them."""
    program, clustering, groups, model = decisions.program, decisions.clustering, decisions.class_of, decisions.model
    chosen = [cluster.strategies[choice[k]] for cluster, k in zip(clustering.clusters, groups, strict=True)]
    shared = {(hub.source, hub.result): hub.held(choice[n]) for n, hub in decisions.hubs.items()}
    hubs = {
        v.id: shared[groups[c.index], k]
        for c in clustering.clusters
        for k, v in enumerate(c.outs)
        if (groups[c.index], k) in shared
    }
    complete: list[Strategy | None] = []
    allowed = narrow_to_pins(program, request.pins, request.placement)
    known: dict[object, Strategy] = {}
    pinned = {*request.pins, *(program.input_ops[i].index for i, _ in program.donated)} if request.pins else set()
    for op, f in zip(program.nodes, clustering.factors, strict=True):
        if op.index not in clustering.cluster_of:
            complete.append(None)
            continue
        cluster = clustering.clusters[clustering.cluster_of[op.index]]
        alone = (
            (groups[cluster.index], id(f), op is cluster.ops[0])
            if cluster.root is None and op.index not in pinned
            else None
        )
        way = known.get(alone)
        if way is None:
            ins, outs = cluster.codes(chosen[cluster.index], op)
            key = (id(f), ins, outs, op.index if op.index in pinned else -1)
            way = known.get(key)
            if way is None:
                way = known[key] = _complete(op, f, ins, outs, request, allowed)
            if alone is not None:
                known[alone] = way
        complete.append(way)
    table, nodes, examples = _tabulate(complete)
    positions = Positions(program)
    seconds = kernel_seconds(decisions, chosen)
    light = {k for k, x in enumerate(seconds) if x <= request.cluster.op_seconds_floor}
    boxed = _boxed(program, clustering, nodes, examples)
    boxings = list(_boxings(program, clustering, complete, boxed, hubs, request, model, positions, light))
    compute = sum(c.times * seconds[c.index] for c in clustering.clusters)
    memory = footprint.over_time(choice)
    moved = sum(b.seconds * b.times for b in boxings)
    return PlanData(
        function=name,
        fingerprint=fingerprint(program) if request.share_layers else "",  # no one asks a global tensor's op for it
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
        timeline=timeline(decisions, chosen, seconds, positions, memory),
        argument_names=list(program.argument_names),
    )


def _complete(
    op: Op, f: Factors, ins: tuple[Code | None, ...], outs: tuple[Code, ...], request: Request, allowed: Allowed
) -> Strategy:
    """The op's own strategy: the cluster's, with the operands that needed no decision filled in."""
    found = None
    for s in allowed(op, strategies(f, request.placement.shape, (True,) * len(f.linear), request.uneven)):
        if s.outs == outs and all(a is None or a == b for a, b in zip(ins, s.ins, strict=True)):
            if found is None or s.share < found.share:
                found = s
    if found is None:
        raise InternalError(f"no strategy of {op} has operands {ins} and results {outs}")
    return found


def _leaf(op: Op, value: object, complete: Sequence[Strategy | None], side: int) -> Leaf:
    way = complete[op.index]
    code = (way.outs if side else way.ins)[0] if way is not None else ()
    return Leaf(op.label, tuple(value.shape), dtype_text(value.dtype), signature_of(code))  # pyright: ignore


def _unruled(program: Program) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for op in program.nodes:
        if op.primitive is not None and lookup(op.name) is None:
            found[op.name, user_line(op.info)] = None
    return list(found)


def _boxed(program: Program, clustering: Clustering, nodes: Sequence[int], ways: Sequence[Strategy]) -> set[int]:
    """Ids of values that a node reads in another signature than they are made in; ``nodes``: which way each runs."""
    numbers: dict[Code, int] = {}

    def table(sides: Sequence[Sequence[Code]]) -> np.ndarray:
        found = np.full((len(sides) + 1, max([len(x) for x in sides], default=0) + 1), -1)  # the last row: no way
        for k, codes in enumerate(sides):
            found[k, : len(codes)] = [numbers.setdefault(c, len(numbers)) for c in codes]
        return found

    reader, operand, maker, result = program.wires().T
    way = np.array(nodes)
    is_decided = (way[reader] >= 0) & (way[maker] >= 0)
    reader, operand, maker, result = (x[is_decided] for x in (reader, operand, maker, result))
    wanted, made = table([w.ins for w in ways])[way[reader], operand], table([w.outs for w in ways])[way[maker], result]
    differs = wanted != made
    ids = (program.nodes[m].outs[k].id for m, k in zip(maker[differs].tolist(), result[differs].tolist(), strict=True))
    return {i for i in ids if i not in clustering.free}


def _boxings(
    program: Program, clustering: Clustering, complete: Sequence[Strategy | None], boxed: set[int],
    hubs: dict[int, tuple[Code, ...]], request: Request, model: CostModel, positions: Positions, light: set[int],
) -> Iterator[Boxing]:  # fmt: skip
    """For each value, how every signature its consumers need comes about."""
    awaited = positions.awaited(program, clustering, boxed, light)
    needs: dict[int, dict[Code, Op]] = {}
    first: dict[tuple[int, Code], int] = {}
    for i in boxed:
        for op, k in program.consumers()[i]:
            way = complete[op.index]
            if way is not None:
                code = way.ins[k]
                needs.setdefault(i, {}).setdefault(code, op)
                at = awaited.get(op.index, -1)
                at = positions.needed(op, i) if at < 0 else at
                first[i, code] = min(first.get((i, code), at), at)
    names = request.placement.axis_names
    count = 0
    # Repeated layers ask the same: by value's looks, what it is made as and wanted as, the routes.
    known: dict[object, tuple[dict[Code, Code], list[tuple[Code, Signature, Signature, tuple[Move, ...]]]]] = {}
    for op, way in zip(program.nodes, complete, strict=True):
        if way is None or boxed.isdisjoint([v.id for v in op.outs]):
            continue
        for v, made in zip(op.outs, way.outs, strict=True):
            if v.id not in boxed:
                continue
            wanted = {c: user for c, user in needs.get(v.id, {}).items() if c != made}
            if not wanted:
                continue
            via = hubs.get(v.id, ())
            dtype = dtype_text(v.dtype)
            key = (v.shape, dtype, made, tuple(wanted), via)
            if key not in known:
                sources = _sources(v, made, list(wanted), via, model)
                found: list[tuple[Code, Signature, Signature, tuple[Move, ...]]] = []
                for code, origin in sources.items():
                    src, dst = signature_of(origin), signature_of(code)
                    route = boxing.route(src, dst, request.placement, v.shape, dtype, request.cluster)
                    moves = tuple(
                        Move(s.kind, tuple(names[a] for a in s.axes), s.dst, s.bytes, s.seconds) for s in route.steps
                    )
                    found.append((code, src, dst, moves))
                known[key] = sources, found
            sources, found = known[key]
            for code, src, dst, moves in found:
                user = wanted.get(code) or next(iter(wanted.values()))
                # One that others are boxed from is needed by the first of them.
                served = [first[v.id, c] for c in wanted if c == code or _comes_through(c, code, sources)]
                yield Boxing(
                    count, v.id, v.name or op.label or op.name, v.shape, dtype, src, dst, moves, v.times,
                    program.lines(op.info), program.lines(user.info), positions.made(op, v.id),
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


def _sources(
    value: Value, made: Code, wanted: Sequence[Code], via: Sequence[Code], model: CostModel
) -> dict[Code, Code]:
    """By signature needed, the one it is boxed from; with or without the shared ones in between, what is cheaper."""

    def serve(codes: Sequence[Code]) -> tuple[float, dict[Code, Code]]:
        found = boxing.serve(
            signature_of(made), [signature_of(c) for c in codes], value.shape, value.itemsize, model.axis_sizes,
            model.hardware,
        )  # fmt: skip
        pairs = {code_of(dst): code_of(src) for dst, src in found.items()}
        every = list(dict.fromkeys([made, *codes]))
        seconds = model.boxing(value, every)
        return sum(float(seconds[every.index(s), every.index(d)]) for d, s in pairs.items()), pairs

    direct = serve(wanted)
    extra = [c for c in via if c != made and c not in wanted]
    return min(direct, serve([*extra, *wanted]), key=lambda x: x[0])[1] if extra else direct[1]
