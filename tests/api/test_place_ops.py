"""Placed functions run by actors: the numbers, types and trees of ``jax.jit``, on the devices that were chosen."""

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from placed import assert_same
from sbp_jax.api.segments import segments
from sbp_jax.calls.capture import trace
from sbp_jax.planner.placing import placeable, results_of

DEVICES = sbp.Devices.of("a100-80", "v100", "host")
KEY = jax.random.key(0)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


class Pair(NamedTuple):
    left: Any
    right: Any


def integers(x: jax.Array, y: jax.Array) -> Any:
    """Whole numbers of several widths, flags, an order."""
    z = (x << 2) ^ (x >> 1)
    order = jnp.argsort(y, stable=True)
    return {"bits": z & 7, "order": order, "taken": z[order % 8], "small": y.astype(jnp.int8), "any": (z > 3).any()}


def control(x: jax.Array, n: jax.Array) -> Any:
    """A loop of unknown length, a scan with what it collects, branches, a loop in a loop."""
    y = jax.lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.tanh(c[0] @ c[0]), c[1] + 1), (x, 0))[0]

    def body(c: jax.Array, z: jax.Array) -> Any:
        return jax.lax.fori_loop(0, 3, lambda k, c: c * 0.5 + z[k], c), c.sum()

    last, sums = jax.lax.scan(body, jnp.zeros(8), y)
    chosen = jax.lax.switch(n % 3, [lambda a: a, lambda a: -a, lambda a: a * 2], last)
    return sums, jax.lax.cond(chosen.sum() > 0, lambda a: a @ x, lambda a: a - 1, chosen)


def keys(key: jax.Array, x: jax.Array) -> Any:
    """Keys as arguments, between ops and as results."""
    a, b = jax.random.split(key)
    mask = jax.random.bernoulli(a, 0.5, x.shape)
    noise = jax.random.normal(b, x.shape)
    return jnp.where(mask, x, noise) @ x.T, jax.random.fold_in(b, 3), jax.random.bits(a, (4,))


TABLE = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)


def passed_on(tree: dict[str, Any], x: jax.Array) -> Any:
    """Results that are arguments, twice the same, constants, literals, and nothing."""
    y = x @ TABLE
    return {"given": tree["a"], "twice": (y, y), "pair": Pair(jnp.ones(3), None), "two": 2.0, "table": TABLE,
            "iota": jnp.arange(4), "empty": jnp.zeros((0, 3)), "tree": tree, "sum": x.sum()}  # fmt: skip


def spread(x: jax.Array) -> Any:
    """Results that are broadcasts of what ops make, which cost nothing themselves, and ops that read such."""
    m = jnp.tanh(x).sum()
    wide = jnp.broadcast_to(m, (4, 4))
    return wide, jnp.full((3,), x[0]), (wide + jnp.broadcast_to(x[1], (4, 4))) @ wide


def nothing(x: jax.Array) -> tuple[()]:
    return ()


def weakly(x: jax.Array, n: float) -> Any:
    """Python numbers stay weakly typed."""
    return x.astype(jnp.bfloat16) * n, n * 2, x + 1


def waves(x: jax.Array) -> jax.Array:
    """A spectral step: complex numbers."""
    k = jnp.fft.fftfreq(x.shape[-1]) * 2 * jnp.pi
    u = jnp.fft.fft(x, axis=-1)
    return jnp.fft.ifft(u * jnp.exp(-1j * k**2)).real + jnp.abs(u).mean()


def gaussian_process(x: jax.Array, y: jax.Array, new: jax.Array) -> Any:
    """Linear algebra: a Cholesky factor, solves, an eigenvalue."""

    def kernel(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(-1))

    k = kernel(x, x) + 0.1 * jnp.eye(len(x))
    factor = jnp.linalg.cholesky(k)
    alpha = jax.scipy.linalg.cho_solve((factor, True), y)
    rest = jax.scipy.linalg.solve_triangular(factor, kernel(x, new), lower=True)
    return kernel(new, x) @ alpha, 1.1 - (rest**2).sum(0), jnp.log(jnp.diagonal(factor)).sum()


def k_means(x: jax.Array) -> Any:
    """Iterations until nothing changes, with scattered sums."""

    def step(state: Any) -> Any:
        centres, _, n = state
        near = ((x[:, None] - centres[None]) ** 2).sum(-1).argmin(-1)
        sums = jax.ops.segment_sum(x, near, num_segments=4)
        count = jax.ops.segment_sum(jnp.ones(len(x)), near, num_segments=4)
        return sums / jnp.maximum(count, 1)[:, None], centres, n + 1

    centres, _, n = jax.lax.while_loop(
        lambda s: (jnp.abs(s[0] - s[1]).max() > 1e-3) & (s[2] < 20), step, (x[:4], x[:4] + 1, 0)
    )
    return centres, n


def graph_network(w: Pair, x: jax.Array, edges: jax.Array) -> Any:
    """Messages along edges, a gradient through gathers and scatters."""

    def loss(w: Pair) -> jax.Array:
        h = jnp.tanh(x @ w.left)
        h = jax.ops.segment_sum(h[edges[0]], edges[1], num_segments=len(x)) + h
        return jax.nn.logsumexp(h @ w.right, axis=-1).mean()

    return jax.value_and_grad(loss)(w)


def bodies(x: jax.Array, v: jax.Array) -> Any:
    """Leapfrog of bodies that attract each other: a scan over forces that are a gradient."""

    def energy(x: jax.Array) -> jax.Array:
        d = x[:, None] - x[None]
        return -jnp.triu(1 / jnp.sqrt((d**2).sum(-1) + 0.1), 1).sum()

    def step(c: Any, _: None) -> Any:
        x, v = c
        v = v - 0.05 * jax.grad(energy)(x)
        return (x + 0.1 * v, v), energy(x)

    (x, v), trace = jax.lax.scan(step, (x, v), None, length=5)
    return x, v, trace


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "integers": (integers, (jnp.arange(8, dtype=jnp.uint32), jnp.arange(16, dtype=jnp.int16) % 5)),
    "control": (control, (normal(1, 8, 8), jnp.int32(4))),
    "keys": (keys, (KEY, normal(2, 8, 4))),
    "passed_on": (passed_on, ({"a": normal(3, 4), "b": [np.arange(3), 1]}, normal(4, 8, 8))),
    "spread": (spread, (normal(18, 4),)),
    "nothing": (nothing, (normal(5, 3),)),
    "weakly": (weakly, (normal(6, 8), 3.0)),
    "waves": (waves, (normal(7, 4, 32),)),
    "gaussian_process": (gaussian_process, (normal(8, 12, 2), normal(9, 12), normal(10, 5, 2))),
    "k_means": (k_means, (normal(11, 32, 3),)),
    "graph_network": (graph_network, (Pair(normal(12, 6, 8), normal(13, 8, 3)), normal(14, 10, 6),
                                      jax.random.randint(jax.random.key(15), (2, 30), 0, 10))),
    "bodies": (bodies, (normal(16, 6, 3), normal(17, 6, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_placed_programs_give_what_jit_gives(name: str) -> None:
    fn, args = PROGRAMS[name]
    placed = sbp.place_ops(fn, *args, devices=DEVICES, solver="random", ops=9)
    try:
        assert_same(placed.run(*args), jax.jit(fn)(*args))
    finally:
        placed.close()


def chains(a: jax.Array, b: jax.Array) -> jax.Array:
    for _ in range(3):
        a, b = jnp.tanh(a @ a), jnp.tanh(b @ b)
    return a + b


def test_devices_work_at_the_same_time_in_the_simulated_order() -> None:
    """Two chains on two devices overlap in the record; each lane runs what the simulated run has, in its order."""
    x = normal(0, 600, 600) / 25
    devices = sbp.Devices.of("v100", "v100", jax_devices=jax.devices()[2:4])
    placed = sbp.place_ops(chains, x, 2 * x, devices=devices, solver="heft", ops=20)
    assert set(placed.device_of.values()) == set(devices.names)
    with pytest.raises(sbp.PlanError, match=r"has not run yet: call \.run"):
        placed.record()
    result = placed.run(x, 2 * x)
    assert_same(placed.run(x, 2 * x), jax.jit(chains)(x, 2 * x))
    assert result.device in jax.devices()[2:4]
    record = placed.record()
    lanes = set(record.lanes)
    assert lanes >= set(devices.names) and any(" to " in lane for lane in lanes)
    spans = {lane: record.lane_spans(lane) for lane in devices.names}
    begin = {lane: s[0].start_seconds for lane, s in spans.items()}
    end = {lane: s[-1].end_seconds for lane, s in spans.items()}
    a, b = devices.names
    assert begin[a] < end[b] and begin[b] < end[a]
    assert max(record.peak_registers.values()) == 1
    placed.close()
    assert not [t for t in threading.enumerate() if any(lane in t.name for lane in lanes)]
    assert_same(placed.run(x, 2 * x), result)
    placed.close()


def test_an_op_waits_for_what_it_reads_alone() -> None:
    """What another device waits for ends its segment: a long op after it does not hold it up."""
    x = normal(0, 64, 64)

    def fn(x: jax.Array) -> Any:
        first = x @ x
        return (first @ x) @ x, first @ first

    program, _, _ = trace(fn, (x,), {}, (), ())
    parts = placeable(program, sbp.Devices.of("v100", "v100"), 8)
    assert len(parts.graph) == 4
    for device in itertools.product(range(2), repeat=4):
        found = segments(program, parts, device, range(4))
        for s in found:
            assert all(program.graph.ops.index(a) < program.graph.ops.index(b) for a, b in itertools.pairwise(s.steps))
            sent = {i for i in s.gives if any(i in t.takes for t in found if t.device != s.device)}
            assert sent <= {v.id for v in results_of(s.steps[-1])}
            arrived = {i for i in s.takes if any(i in t.gives for t in found if t.device != s.device)}
            assert len(s.steps) == 1 or not arrived - {v.id for v in s.steps[0].reads}
        assert len(segments(program, parts, [0] * 4, range(4))) == 1


def test_wide_numbers_of_the_calling_thread() -> None:
    def fn(x: jax.Array) -> Any:
        return jnp.cumsum(x) / 3, jnp.arange(3) + x.astype(int)[:3]

    with jax.enable_x64(True):
        x = jnp.linspace(0, 1, 9)
        placed = sbp.place_ops(fn, x, devices=DEVICES, solver="random")
        ours, plain = placed.run(x), jax.jit(fn)(x)
        assert ours[0].dtype == jnp.float64 and ours[1].dtype == jnp.int64
        assert_same(ours, plain)
    placed.close()


def test_runs_that_cannot_be_are_refused_in_words() -> None:
    x = normal(0, 4, 4)
    placed = sbp.place_ops(chains, x, x, devices=DEVICES)
    with pytest.raises(sbp.PlanError, match=r"cannot be traced.*sbp\.place_ops\(jax\.grad\(fn\)"):
        jax.jit(placed.run)(x, x)
    with pytest.raises(sbp.PlanError, match=r"placed for .*run with float32\[4, 4\], int32\[\]"):
        placed.run(x, np.int32(1))
    weak = sbp.place_ops(lambda x: x * 2, jnp.float32(1), devices=DEVICES)
    with pytest.raises(sbp.PlanError, match="weakly typed"):
        weak.run(1.0)


def test_a_fault_in_an_op_reaches_the_caller_and_the_next_run_works() -> None:
    x = normal(0, 4, 4)
    placed = sbp.place_ops(chains, x, x, devices=DEVICES, solver="random")
    run = placed._run
    kept, run._functions[-1] = run._functions[-1], lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        placed.run(x, x)
    run._functions[-1] = kept
    assert_same(placed.run(x, x), jax.jit(chains)(x, x))
    placed.close()
