"""Ops cut by ratios among unlike devices: what moves, known ratios, the numbers of any cut, plans and their rivals."""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.calls.capture import trace
from sbp_jax.lower.plain import PlainEmitter
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.methods.dp import eliminate
from sbp_jax.planner.placing import Placing, PlacingTask, placeable, sample_graph, steps_of
from sbp_jax.planner.ratios.accpar_ratios import balanced, halves_of
from sbp_jax.planner.ratios.balance import ratios, together
from sbp_jax.planner.ratios.layouts import FIRST, OUTSIDE, SECOND, Sides, is_terms, received
from sbp_jax.planner.ratios.pieces import Pieces, in_pieces
from sbp_jax.planner.ratios.problem import Problem, Way
from sbp_jax.rules.widen import PARTIAL, B
from sbp_jax.trace import Op, Structured

SUM = PARTIAL["sum"]


def by_speed(*speeds: float, bytes_per_second: float = 1e15, latency_seconds: float = 0.0) -> sbp.Devices:
    """Devices whose memory is no limit to their products, unless asked for, and links that take no time."""
    n = len(speeds)
    rates = [1e12 * s for s in speeds]
    return sbp.Devices.by_speed([f"d{k}" for k in range(n)], flops_per_second=rates,
                                memory_bytes_per_second=[1e15 * s for s in speeds], memory_bytes=[1e12] * n,
                                bytes_per_second=bytes_per_second, latency_seconds=latency_seconds)  # fmt: skip


def shapes(*each: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in each)


def placing(fn: Callable[..., Any], args: Sequence[Any], devices: sbp.Devices, **options: Any) -> Placing:
    program = trace(fn, args, {}, (), ())[0]
    method = lookup("accpar_ratios", "placing")
    graph = placeable(program, devices, 50).graph
    return method.run(PlacingTask(graph, devices, method.checked(options), program))


def chain(x: jax.Array, *weights: jax.Array) -> jax.Array:
    for w in weights:
        x = x @ w
    return x


# What moves, and who is halved.


@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_a_side_receives_what_it_needs_and_does_not_have(ratio: float) -> None:
    """Counted element by element, on a value of 8 x 4."""
    at = {0: round(8 * ratio), 1: round(4 * ratio)}
    grid = {d: np.indices((8, 4))[d] for d in (0, 1)}

    def has(layout: int, side: int) -> np.ndarray:
        if layout >= 0:
            return grid[layout] < at[layout] if side == 0 else grid[layout] >= at[layout]
        return np.full((8, 4), layout == B or layout == (FIRST, SECOND)[side])

    layouts = [0, 1, B, SUM, FIRST, SECOND, OUTSIDE]
    for source, target in itertools.product(layouts, layouts[:-1]):
        found = received(source, target, 32.0, ratio)
        if is_terms(target) and (source >= 0 or (is_terms(source) and source != target)):
            assert found is None
        elif is_terms(target):  # a term is made of what is there; from outside the first side gets all of it
            assert found == ((32.0, 0.0) if source == OUTSIDE else (0.0, 0.0))
        elif source == target:
            assert found == (0.0, 0.0)
        else:
            counted = tuple(float((has(target, side) & ~has(source, side)).sum()) for side in (0, 1))
            assert found == pytest.approx(counted), (source, target)


def test_halves_keep_kinds_together() -> None:
    a, v, h = sbp.Devices.of("a100-80", "v100", "host").kinds
    assert halves_of((4, 2, 3, 7), (a, v, v, h)) == ((4,), (2, 3, 7))
    assert halves_of((0, 1, 2, 3), (a, a, v, v)) == ((0, 1), (2, 3))
    assert halves_of((0, 1, 2, 3, 4), (a, a, a, a, v)) == ((0, 1, 2, 3), (4,))
    assert halves_of((5, 6, 7), (v, v, v)) == ((5,), (6, 7))


# Known answers.


@pytest.mark.parametrize("speeds", [(3.0, 1.0), (1.0, 3.0), (5.0, 3.0), (2.0, 1.0, 1.0), (4.0, 2.0, 1.0, 1.0)])
def test_rows_of_a_chain_are_shared_as_devices_are_fast(speeds: tuple[float, ...]) -> None:
    x = np.arange(4000.0 * 8).reshape(4000, 8)
    found = placing(lambda x, *w: chain(x, *w).sum(), (*shapes((4000, 8), (8, 8), (8, 8)),), by_speed(*speeds))
    assert found.cut is not None
    pieces = [p for p in found.cut.arguments([x, np.ones((8, 8)), np.ones((8, 8))]) if p.shape != (8, 8)]
    assert sorted(map(len, pieces)) == sorted(round(4000 * s / sum(speeds)) for s in speeds)
    assert np.array_equal(np.concatenate(sorted(pieces, key=lambda p: p[0, 0])), x)
    fastest = max(range(len(speeds)), key=lambda d: speeds[d])
    assert found.notes[0].startswith(f"d{fastest} ")
    alone = 2 * 2 * 4000 * 8 * 8 / (1e12 * max(speeds))
    assert found.seconds == pytest.approx(alone * max(speeds) / sum(speeds), rel=0.05)


def test_dims_that_are_merged_are_cut_at_one_place() -> None:
    """Rows of seven batches of 35: as many whole batches as are nearest, and nothing moves but a sum."""
    fn, args = (
        lambda x, w: jnp.tanh(jnp.tanh(x).reshape(245, 8) @ w).reshape(7, 35, 8).sum(),
        shapes((7, 35, 8), (8, 8)),
    )
    found = placing(fn, args, by_speed(3.0, 1.0), tries=1)
    assert found.cut is not None
    names = [op.name for op in found.cut.program.graph.ops if isinstance(op, Op)]
    assert not {"slice", "concatenate"} & set(names) and names.count("dot_general") == 2
    rows = [op.ins[0].shape[0] for op in found.cut.program.graph.ops if isinstance(op, Op) and op.name == "dot_general"]
    assert rows == [5 * 35, 2 * 35]


@functools.cache
def problem_of(kind: str) -> Problem:
    """A step or a chain, on two sides with links that count."""
    if kind == "chain":
        fn, args = chain, shapes((96, 64), (64, 128), (128, 32))
    else:
        fn, args = step, ([*shapes((64, 96), (96, 64))], *shapes((120, 64), (120, 64)))
    devices = by_speed(3.0, 2.0, bytes_per_second=4e9, latency_seconds=1e-8)
    program = trace(fn, args, {}, (), ())[0]
    found = steps_of(program, devices)
    return Problem.of(program, found, range(len(found.steps)), devices, Sides.of(devices, (0,), (1,)))


def step(w: Any, x: jax.Array, y: jax.Array) -> Any:
    def loss(w: Any) -> jax.Array:
        h = jnp.tanh(x @ w[0]) @ w[1]
        return ((h - y) ** 2).mean()

    value, slopes = jax.value_and_grad(loss)(w)
    return [a - 0.1 * b for a, b in zip(w, slopes, strict=True)], value


@pytest.mark.parametrize("kind", ["chain", "step"])
def test_ways_are_the_best_of_all_and_ratios_the_least_of_all(kind: str) -> None:
    """Elimination against every choice of ways near the best; of each ratio every fraction is tried."""
    problem = problem_of(kind)
    ways = problem.best({}, 0.6)
    graph = problem.costs({}, 0.6)
    choice = list(eliminate(graph).choice)  # pyright: ignore[reportOptionalMemberAccess]
    least = graph.evaluate(choice)
    for a, b in itertools.product(range(len(graph.nodes)), repeat=2):
        for j, k in itertools.product(range(len(graph.nodes[a])), range(len(graph.nodes[b]))):
            other = choice[:]
            other[a], other[b] = j, k
            assert graph.evaluate(other) >= least * (1 - 1e-12)
    ways, ratio = balanced(problem)
    assert any(w.factor >= 0 for w in ways)
    for members in together(problem, ways):
        one = {ratio[i] for i in members}
        assert len(one) == 1
        common = int(np.gcd.reduce([ways[i].length for i in members]))
        assert (one.pop() * common) % 1 == 0


def test_what_moves_shifts_the_ratio() -> None:
    """Rows whose results are put together on the first side: the slower the link, the fewer the second has."""
    parts = []
    for rate in (1e15, 2e10, 4e9):
        devices = by_speed(3.0, 1.0, bytes_per_second=rate)
        program = trace(chain, shapes((1200, 400), (400, 400)), {}, (), ())[0]
        found = steps_of(program, devices)
        problem = Problem.of(program, found, range(len(found.steps)), devices, Sides.of(devices, (0,), (1,)))
        rows = next(w for w in problem.ways[0] if w.ins[0] == 0)
        parts.append(ratios(problem, [rows])[0])
    assert parts[0] == pytest.approx(0.75)
    assert parts == sorted(parts) and parts[2] > 0.8


# The numbers of any cut.


def run(pieces: Pieces, args: Any) -> list[Any]:
    """The program of pieces on one device."""
    p = pieces.program

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def whole(given: Sequence[Any]) -> list[Any]:
        known = {op.outs[0].id: x for op, x in zip(p.input_ops, [*given, *p.constants], strict=True)}
        return PlainEmitter({}).steps_on(p.graph.ops, known, [op.ins[0] for op in p.output_ops])

    return whole(pieces.arguments(jax.tree.leaves(args)))


def any_ways(problem: Problem, draw: random.Random) -> list[Way]:
    """A way by chance for each part, among those that what it reads allows; mostly cuts and terms."""
    ways: list[Way] = []
    for i, every in enumerate(problem.ways):
        possible = [
            w for w in every
            if all(received(problem.made_as(ways, v), problem.layout(i, w, p), 1.0, 0.5) for v, p in problem.reads(i))
        ]  # fmt: skip
        cuts = [w for w in possible if w.factor >= 0 or any(map(is_terms, (*w.ins, *w.outs)))]
        ways.append(draw.choice(cuts if cuts and draw.random() < 0.7 else possible))
    return ways


def cut_anyhow(fn: Callable[..., Any], args: Any, seed: int, n: int) -> tuple[Pieces, set[str]]:
    """A program in pieces of any length, of any ways, on ``n`` devices; the kinds of ways that were taken."""
    draw, devices = random.Random(seed), by_speed(*range(n, 0, -1))
    program = trace(fn, args, {}, (), ())[0]
    everyone = tuple(range(n))
    pieces, taken = Pieces.whole(program, everyone), set[str]()
    for k in range(n - 1):
        group = everyone[k:]
        found = steps_of(pieces.program, devices)
        mine = [k for k, s in enumerate(found.steps) if pieces.groups[id(s)] == group]
        problem = Problem.of(pieces.program, found, mine, devices, Sides.of(devices, group[:1], group[1:]))
        ways = any_ways(problem, draw)
        taken |= {"cut" if w.factor >= 0 else "terms" if any(map(is_terms, w.outs)) else str(w.outs[0]) for w in ways}
        pieces = in_pieces(pieces, problem, ways, {i: draw.random() for i in range(len(ways))})
    assert {len(g) for g in pieces.groups.values()} == {1}
    return pieces, taken


def mixed(w: Any, x: jax.Array, picks: jax.Array) -> Any:
    """Products, a softmax, extremes, merged dims, a loop, lookups, whole numbers, flags, a padded slice."""
    h = jnp.tanh(x @ w["a"])  # (6, 5, 8)
    flat = h.reshape(30, 8) @ w["b"]
    p = jax.nn.softmax(flat, axis=0)
    total, rows = jax.lax.scan(lambda c, z: (c * 0.5 + z, z.max()), jnp.zeros(9), p[:7])
    back = p.reshape(6, 5, 9).transpose(1, 0, 2)
    count = (back > back.mean()).sum((0, 2)) + jnp.arange(6)
    parts = jnp.concatenate([jnp.pad(back[1:3], ((0, 0), (1, 0), (0, 0))), back[:, :1].repeat(7, 1)], 0)
    most = jnp.maximum(flat.max(0), -flat.min(0))
    summed = jnp.cumsum(flat @ w["b"].T, 0)
    return parts, total, rows, count, most, w["b"][picks % 8].sum(0), (flat > 0).any(1), summed[::3], flat.argmax(0)


def assert_same(found: Sequence[Any], expected: Any) -> None:
    for a, b in zip(found, jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("seed", "n"), [
    pytest.param(seed, n, marks=pytest.mark.slow if (seed, n) != (0, 3) else ()) for seed in range(12) for n in (2, 3)
])  # fmt: skip
def test_any_ways_and_ratios_give_the_same_numbers(seed: int, n: int) -> None:
    keys = jax.random.split(jax.random.key(seed), 3)
    w = {"a": jax.random.normal(keys[0], (7, 8)), "b": jax.random.normal(keys[1], (8, 9))}
    args = w, jax.random.normal(keys[2], (6, 5, 7)), jnp.arange(11)
    pieces, taken = cut_anyhow(mixed, args, seed, n)
    assert {"cut", "terms"} <= taken
    assert_same(run(pieces, args), jax.jit(mixed)(*args))


def test_positions_are_those_of_the_whole() -> None:
    """What counts rows, and what looks rows up in a table that is cut."""

    def fn(x: jax.Array, w: jax.Array, picks: jax.Array) -> Any:
        rows = (x @ w) * jnp.arange(40.0)[:, None]
        return rows, rows[picks]

    args = jax.random.normal(jax.random.key(0), (40, 8)), jnp.ones((8, 9)), jnp.arange(0, 40, 3)
    devices = by_speed(3.0, 2.0)
    program = trace(fn, args, {}, (), ())[0]
    found = steps_of(program, devices)
    problem = Problem.of(program, found, range(len(found.steps)), devices, Sides.of(devices, (0,), (1,)))
    cut: list[Way] = []
    for every, part in zip(problem.ways, found.steps, strict=True):
        assert isinstance(part, Op)
        rows = [w for w in every if w.factor >= 0 and w.ins[0] == 0 and is_terms(w.outs[0]) == (part.name == "gather")]
        whole = [w for w in every if w.factor < 0]
        cut.append(rows[0] if part.outs[0].shape == (40, 9) or part.name == "gather" else whole[0])
    assert [w.outs for w in cut if w.factor >= 0] == [(0,), (0,), (SUM,)]
    found = run(in_pieces(Pieces.whole(program, (0, 1)), problem, cut, dict.fromkeys(range(len(cut)), 0.4)), args)
    assert_same(found, fn(*args))


def test_the_program_that_was_cut_stays_as_it_is() -> None:
    args = {"a": jnp.ones((7, 8)), "b": jnp.ones((8, 9))}, jnp.ones((6, 5, 7)), jnp.arange(11)
    program = trace(mixed, args, {}, (), ())[0]
    before = [(id(op), op.index, tuple(map(id, op.ins)), tuple(map(id, op.outs))) for op in program.nodes]
    devices = by_speed(2.0, 1.0)
    found = steps_of(program, devices)
    problem = Problem.of(program, found, range(len(found.steps)), devices, Sides.of(devices, (0,), (1,)))
    in_pieces(Pieces.whole(program, (0, 1)), problem, *balanced(problem))
    assert any(isinstance(s, Structured) for s in found.steps)
    assert before == [(id(op), op.index, tuple(map(id, op.ins)), tuple(map(id, op.outs))) for op in program.nodes]


def test_no_kernel_spans_two_devices() -> None:
    """What is fused on one device is written and read where its maker and reader are on two."""
    devices = sbp.Devices.of("v100", "v100")
    program = trace(lambda x: jnp.exp(jnp.tanh(x)), shapes((512, 512)), {}, (), ())[0]
    first, second = program.graph.ops
    assert isinstance(first, Op)
    one = steps_of(program, devices, {id(first): 0, id(second): 0})
    two = steps_of(program, devices, {id(first): 0, id(second): 1})
    assert one.fused == {first.outs[0].id} and not two.fused
    assert two.seconds[0, 0] > one.seconds[0, 0] and np.isinf(two.seconds[0, 1])


# Plans.


@pytest.mark.parametrize(
    "kinds", [("a100-80", "v100"), ("h100", "a100-80"), ("v100", "host"), ("host", "v100", "a100-80")]
)
def test_steps_are_shorter_than_in_halves_and_on_one_device(kinds: tuple[str, ...]) -> None:
    devices = sbp.Devices.of(*kinds, bytes_per_second=6e11, latency_seconds=2e-6)
    args = [*shapes((1024, 4096), (4096, 1024))], *shapes((16384, 1024), (16384, 1024))
    place = functools.partial(sbp.place_ops, step, *args, devices=devices)
    ours, equal = place(solver="accpar_ratios"), place(solver="accpar_ratios", solver_options={"ratio": "equal"})
    alone = place(solver="one_device")
    assert ours.seconds < 0.99 * alone.seconds and ours.seconds < 0.99 * equal.seconds
    whole = steps_of(trace(step, args, {}, (), ())[0], devices).seconds.sum(axis=0)
    assert ours.seconds > 0.9 / (1 / whole).sum()  # pieces may take a little less than their part of a whole op
    t = ours.timeline
    busy = [sum(float(ours.graph.seconds[v, d]) for v in range(len(ours.graph)) if t.device[v] == d)
            for d in range(len(devices))]  # fmt: skip
    assert min(busy) > 0.7 * max(busy)
    assert str(ours).count("products cut: ") == len(devices) - 1
    assert not any("nothing is cut" in note for note in equal.notes)


def test_where_links_are_slow_nothing_is_cut() -> None:
    devices = by_speed(3.0, 2.0, bytes_per_second=1e6, latency_seconds=1e-3)
    found = placing(chain, shapes((64, 64), (64, 64)), devices)
    assert found.cut is None and set(found.device) == {0}
    assert found.notes == ("nothing is cut: pieces on several devices would take longer",)
    assert placing(chain, shapes((64, 64), (64, 64)), devices, ratio="equal").cut is not None


def test_memory_that_pieces_do_not_have_leaves_whole_ops() -> None:
    args, small = shapes((4096, 256), (256, 256)), 1e5
    devices = sbp.Devices.by_speed(["a", "b"], flops_per_second=[2e12, 1e12], memory_bytes_per_second=[1e13] * 2,
                                   memory_bytes=[1e12, small], bytes_per_second=1e12, latency_seconds=0.0)  # fmt: skip
    assert placing(chain, args, by_speed(2.0, 1.0)).cut is not None
    found = placing(chain, args, devices)
    assert found.cut is None and found.notes == ("nothing is cut: pieces on several devices would not fit in memory",)
    with pytest.raises(sbp.PlanError, match="no placement was found that fits in memory: b needs"):
        placing(chain, args, devices, ratio="equal")


@pytest.mark.parametrize("limited", [0, 1])
def test_a_side_with_little_memory_gets_less(limited: int) -> None:
    args, speeds = shapes((4096, 256), (256, 256)), [2e12, 1e12]
    free = placing(chain, args, by_speed(2.0, 1.0))
    assert free.cut is not None
    peak = PlacingTask(free.cut.parts.graph, by_speed(2.0, 1.0)).simulator.timeline(free.device, free.order).peak_bytes
    memory = [1e12, 1e12]
    memory[limited] = 0.9 * peak[limited]
    devices = sbp.Devices.by_speed(["a", "b"], flops_per_second=speeds, memory_bytes_per_second=[1e15] * 2,
                                   memory_bytes=memory, bytes_per_second=1e15, latency_seconds=0.0)  # fmt: skip
    found = placing(lambda *x: chain(*x).sum(), args, devices)
    assert found.cut is not None
    held = PlacingTask(found.cut.parts.graph, devices).simulator.timeline(found.device, found.order).peak_bytes
    assert (held <= devices.limits).all()


# Bad input, and little to cut.


def test_dims_shorter_than_there_are_devices() -> None:
    x, w = jnp.arange(6.0).reshape(2, 3), jnp.arange(6.0).reshape(3, 2)
    for fn, args in ((chain, (x, w)), (lambda x: x + 1, (jnp.float32(2),)), (lambda x: x @ x.T, (jnp.ones((1, 1)),))):
        placed = sbp.place_ops(fn, *args, devices=by_speed(4.0, 3.0, 2.0, 1.0), solver="accpar_ratios",
                               solver_options={"ratio": "equal"})  # fmt: skip
        np.testing.assert_allclose(placed.run(*args), fn(*args), rtol=1e-6)
        placed.close()
    assert any("no product can be cut" in note for note in placed.notes)


def test_what_cannot_be_is_refused_in_words() -> None:
    args = shapes((8, 8), (8, 8))
    with pytest.raises(sbp.PlanError, match=r"shares every op among devices, and there is one: .*'one_device'"):
        sbp.place_ops(chain, *args, devices=by_speed(1.0), solver="accpar_ratios")
    with pytest.raises(sbp.PlanError, match=r"was given a graph of ops alone: name it in\s+sbp\.place_ops"):
        devices = by_speed(2.0, 1.0)
        lookup("accpar_ratios", "placing").run(PlacingTask(sample_graph(0, 4, devices), devices, {"ratio": "equal"}))
    for wrong, words in (({"ratio": "half"}, "possible: 'balanced', 'equal'"), ({"tries": 0}, "at least 1")):
        with pytest.raises(sbp.PlanError, match=words):
            sbp.place_ops(chain, *args, devices=by_speed(2.0, 1.0), solver="accpar_ratios", solver_options=wrong)
    with pytest.raises(sbp.PlanError, match="has an effect or runs on the host"):
        sbp.place_ops(lambda x: jax.debug.print("{}", x), args[0], devices=by_speed(2.0, 1.0), solver="accpar_ratios")
