"""Effects, host callbacks and randomness of a device's own: once, in ``jax.jit``'s order, for all devices."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.sharding import SingleDeviceSharding

import sbp_jax as sbp
from sbp_jax.trace import build, recompute

MESHES = {
    "2x4": sbp.placement("cpu", ranks=[[0, 1, 2, 3], [4, 5, 6, 7]], axis_names=("dp", "tp")),
    "8": sbp.placement.all("cpu"),
    "1": sbp.placement("cpu", ranks=[5]),
    "1x4": sbp.placement("cpu", ranks=[[7, 3, 1, 2]], axis_names=("a", "b")),
}
X = jnp.arange(16.0).reshape(8, 2)
LIKE = jax.ShapeDtypeStruct(X.shape, X.dtype)
LIKE_SQUARE = jax.ShapeDtypeStruct((4, 4), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


class Host:
    """What the host saw: by the name of the callback, the arguments of each call in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, name: str) -> Callable[..., Any]:
        """A callback that notes its argument, and gives it back with the number of its calls so far added."""

        def note(x: Any) -> np.ndarray:
            self.seen.append((name, np.asarray(x).tolist()))
            return np.asarray(np.asarray(x) + len(self.of(name)), np.asarray(x).dtype)

        return note

    def pure(self, name: str) -> Callable[..., Any]:
        """A callback whose result is its argument's alone."""
        note = self(name)
        return lambda x: (note(x), np.sin(x))[1]

    def say(self, name: str) -> Callable[..., None]:
        note = self(name)
        return lambda x: (note(x), None)[1]

    def of(self, name: str) -> list[Any]:
        return [x for n, x in self.seen if n == name]


def twice(h: Host, x: jax.Array) -> Any:
    return io_callback(h("a"), LIKE, x) + io_callback(h("a"), LIKE, x)


def unread(h: Host, x: jax.Array) -> Any:
    io_callback(h("a"), LIKE, x)
    jax.pure_callback(h("dead"), LIKE, x)
    return x * 2


def pure(h: Host, x: jax.Array) -> Any:
    return jax.pure_callback(h.pure("a"), LIKE, x) @ jax.pure_callback(h.pure("a"), LIKE, x).T


def ordered(h: Host, x: jax.Array) -> Any:
    y = io_callback(h("a"), LIKE, x * 2, ordered=True)
    z = io_callback(h("a"), LIKE, x, ordered=True)
    io_callback(lambda v: h.seen.append(("a", float(v))), None, x.sum(), ordered=True)
    return y - z


def said(h: Host, x: jax.Array) -> Any:
    jax.debug.callback(h.say("a"), x, ordered=True)
    y = jnp.sin(x) @ x.T
    jax.debug.callback(h.say("a"), y, ordered=True)
    jax.debug.callback(h.say("b"), y.sum())
    return y


def scanned(h: Host, x: jax.Array) -> Any:
    def body(c: jax.Array, i: jax.Array) -> Any:
        y = io_callback(h("a"), SCALAR, c.sum() + i, ordered=True)
        jax.debug.callback(h.say("b"), i, ordered=True)
        return c + 1, y

    return lax.scan(body, x, jnp.arange(5.0))


def nested(h: Host, x: jax.Array) -> Any:
    def outer(c: jax.Array, i: jax.Array) -> Any:
        def inner(j: int, c: jax.Array) -> jax.Array:
            here = (i + j) % 2 == 0
            return lax.cond(here, lambda: io_callback(h("a"), LIKE, c, ordered=True), lambda: c + 1)

        return lax.fori_loop(0, 3, inner, c), jnp.sum(c)

    return lax.scan(outer, x, jnp.arange(2))


def condition(h: Host, x: jax.Array) -> Any:
    most = x.sum()

    def goes_on(c: Any) -> jax.Array:
        return io_callback(h("a"), SCALAR, c[0], ordered=True) < most / 10

    return lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] * 1.5), (0.0, x))


def unordered_condition(h: Host, x: jax.Array) -> Any:
    return lax.while_loop(lambda c: io_callback(h("a"), SCALAR, c[0, 0]) < 9, lambda c: c + 1, x)


def branches(h: Host, x: jax.Array) -> Any:
    paths = [lambda k=k: io_callback(h(f"branch {k}"), LIKE, x + k) for k in range(3)]
    return lax.switch((x.sum() > 0).astype(jnp.int32) + 1, paths)


def mapped(h: Host, x: jax.Array) -> Any:
    row = jax.ShapeDtypeStruct((2,), x.dtype)
    jax.vmap(lambda r: jax.debug.callback(h.say("b"), r, ordered=True))(x)
    return jax.vmap(lambda r: io_callback(h("a"), row, r))(x)


def sequential(h: Host, x: jax.Array) -> Any:
    row = jax.ShapeDtypeStruct((2,), x.dtype)
    return jax.vmap(lambda r: jax.pure_callback(h.pure("a"), row, r, vmap_method="sequential"))(x)


def differentiated(h: Host, x: jax.Array) -> Any:
    def loss(x: jax.Array) -> jax.Array:
        jax.debug.callback(h.say("a"), x, ordered=True)
        y = jnp.sin(x)
        jax.debug.callback(h.say("a"), y, ordered=True)
        return (y**2).sum()

    return jax.value_and_grad(loss)(x)


def rematerialised(h: Host, x: jax.Array) -> Any:
    @jax.checkpoint
    def block(x: jax.Array) -> jax.Array:
        jax.debug.callback(h.say("in any order"), x.sum())
        return jnp.sin(jnp.sin(x))

    return jax.grad(lambda x: block(block(x)).sum())(x)


PROGRAMS = [twice, unread, pure, ordered, said, scanned, nested, condition, unordered_condition, branches, mapped,
            sequential, differentiated, rematerialised]  # fmt: skip


def run(step: Callable[..., Any], *args: Any) -> Any:
    result = jax.block_until_ready(step(*args))
    jax.effects_barrier()
    return result


@pytest.mark.parametrize(("mesh", "lowering"), [("2x4", "manual"), ("8", "manual"), ("2x4", "gspmd")])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_effects_are_those_of_one_device(program: Callable[..., Any], mesh: str, lowering: Any) -> None:
    alone, together = Host(), Host()
    truth = run(jax.jit(lambda x: program(alone, x)), X)
    step = sbp.auto_parallel(
        lambda x: program(together, x), placement=MESHES[mesh], in_sbp="S(0)" + ", B" * (mesh == "2x4"),
        config=sbp.AutoParallelConfig(lowering=lowering),
    )  # fmt: skip
    found = run(step, X)
    names = {n for n, _ in alone.seen}
    assert names == {n for n, _ in together.seen}
    for name in names:  # JAX orders what is ordered among its own kind; nothing between the kinds
        order = sorted if name == "in any order" else list
        assert order(together.of(name)) == order(alone.of(name))
    for a, b in zip(jax.tree.leaves(truth), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)
    assert step.plan(X).verify().ok or lowering == "gspmd"


def test_an_effect_of_foreign_code_runs_once() -> None:
    jnp.linalg.cholesky(jnp.eye(4))  # registers LAPACK's functions

    def step(x: jax.Array) -> Any:
        shapes = LIKE_SQUARE, jax.ShapeDtypeStruct((), jnp.int32)
        y, info = jax.ffi.ffi_call("lapack_spotrf_ffi", shapes, has_side_effect=True, input_layouts=[(0, 1)],
                                   output_layouts=[(0, 1), ()])(x, uplo=np.uint8(ord("L")))  # fmt: skip
        return jnp.tril(y), info

    made = sbp.auto_parallel(step, placement=MESHES["2x4"])
    square = jnp.eye(4) * 4 + 1
    np.testing.assert_array_equal(made(square)[0], jax.jit(step)(square)[0])
    plan = made.plan(square)
    assert plan.verify().exact and [b.value for b in plan.boxings()] == ["sbp.once", "sbp.once"]


@pytest.mark.parametrize("mesh", ["1", "1x4"])
@pytest.mark.parametrize("program", [ordered, said, scanned], ids=lambda f: f.__name__)
def test_axes_of_one_device(program: Callable[..., Any], mesh: str) -> None:
    alone, together = Host(), Host()
    run(jax.jit(lambda x: program(alone, x)), X)
    run(sbp.auto_parallel(lambda x: program(together, x), placement=MESHES[mesh]), X)
    assert {n: together.of(n) for n, _ in alone.seen} == {n: alone.of(n) for n, _ in alone.seen}


def same_everywhere(x: jax.Array) -> bool:
    """Whether all devices hold the same bits of the pieces that they share."""
    by_index: dict[str, bytes] = {}
    return all(by_index.setdefault(str(s.index), np.asarray(s.data).tobytes()) == np.asarray(s.data).tobytes()
               for s in x.addressable_shards)  # fmt: skip


def test_numbers_of_the_host_and_of_the_device_are_the_same_on_all() -> None:
    """A clock, a counter: every call gives another number, and it is called once for all."""
    calls: list[int] = []

    def step(x: jax.Array) -> Any:
        now = io_callback(lambda: (calls.append(1), np.float32(len(calls)))[1], SCALAR)
        return now, x + now, lax.rng_uniform(0.0, 1.0, (8, 2)), lax.rng_uniform(0.0, 1.0, (8, 2))

    for signature in ("B, B", "S(0), B", "S(0), S(1)"):
        calls.clear()
        made = sbp.auto_parallel(step, placement=sbp.placement("cpu", ranks=[[0, 1], [2, 3]]), in_sbp=signature,
                                 out_sbp=(None, signature, "B, B", signature))  # fmt: skip
        now, y, first, second = run(made, X)
        assert len(calls) == 1 and float(now) == 1 and same_everywhere(now) and same_everywhere(first)
        np.testing.assert_array_equal(y, X + 1)
        assert (np.asarray(first) != np.asarray(second)).all()  # two draws, though they look the same
        assert ((np.asarray(first) >= 0) & (np.asarray(first) < 1)).all()
        assert len(np.unique(second)) == second.size
        assert made.plan(X).verify().exact


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64",
          "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_arrives(dtype: str) -> None:
    kind = jnp.dtype(dtype)
    values = np.array([0.0, -0.0, 1.0, 3.0, 0.0, 1.0, 2.0, 5.0]).astype(kind)
    if jnp.issubdtype(kind, jnp.inexact):
        values[4] = np.nan
        if dtype != "float8_e4m3fn":
            values[5] = np.inf
    if kind == jnp.complex64:
        values[6] = complex(-0.0, -np.inf)

    def step(x: jax.Array) -> Any:
        return io_callback(lambda: values, jax.ShapeDtypeStruct((8,), kind)), x

    found, _ = run(sbp.auto_parallel(step, placement=MESHES["2x4"]), X)
    assert found.dtype == kind and same_everywhere(found)
    assert np.asarray(found).tobytes() == values.tobytes()


def test_an_infinite_factor_meets_no_zeros() -> None:
    """The terms of a callback's result are not computed with: zero times infinity would not be a number."""
    step = sbp.auto_parallel(
        lambda x: (io_callback(lambda: np.full((8, 2), 2.0, np.float32), LIKE) * x) @ jnp.ones((2, 2)),
        placement=MESHES["2x4"],
    )
    np.testing.assert_array_equal(run(step, jnp.full((8, 2), jnp.inf)), np.full((8, 2), np.inf))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_numbers_of_a_key_are_those_of_one_device(impl: str) -> None:
    def draw(seed: jax.Array, x: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(seed, impl=impl), 3)
        keys = jax.random.split(key, 8)
        rows = jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)

        def body(k: jax.Array, row: jax.Array) -> Any:
            k, sub = jax.random.split(k)
            return k, row + jax.random.uniform(sub, row.shape)

        _, looped = lax.scan(body, key, x)
        return (
            jax.random.normal(key, x.shape) + rows,
            jax.random.gamma(key, 2.0, (8,)),
            looped,
            jax.random.bits(key, (8,)),
        )

    step = sbp.auto_parallel(draw, placement=MESHES["2x4"], in_sbp=(None, "S(0), B"))
    for a, b in zip(jax.jit(draw)(jnp.int32(7), X), step(jnp.int32(7), X), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm), ids=lambda a: a.name)
def test_bit_generators_of_a_state_are_those_of_one_device(algorithm: Any) -> None:
    def draw(state: jax.Array) -> Any:
        state, bits = lax.rng_bit_generator(state, (8, 4), algorithm=algorithm)
        return lax.rng_bit_generator(state, (8, 4), algorithm=algorithm), bits

    state = jnp.arange(4, dtype=jnp.uint32)
    found = sbp.auto_parallel(draw, placement=MESHES["2x4"])(state)
    for a, b in zip(jax.tree.leaves(jax.jit(draw)(state)), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)
        assert same_everywhere(b)


@pytest.mark.parametrize("has_side_effect", [False, True])
def test_callbacks_into_buffers_run_once(has_side_effect: bool) -> None:
    seen: list[Any] = []

    def fill(ctx: Any, out: Any, x: Any) -> None:
        seen.append(np.asarray(x).tolist())
        np.asarray(out)[...] = np.asarray(x) + len(seen)

    call = buffer_callback(fill, LIKE, has_side_effect=has_side_effect)
    step = sbp.auto_parallel(lambda x: call(x) * 2, placement=MESHES["2x4"], in_sbp="S(0), B")
    np.testing.assert_array_equal(run(step, X), (X + 1) * 2)
    assert seen == [X.tolist()] and step.plan(X).verify().ok


def test_the_plan_lists_and_prices_what_sends_the_result() -> None:
    def step(x: jax.Array) -> jax.Array:
        return x * io_callback(lambda: np.ones((8, 2), np.float32), LIKE)

    plan = sbp.plan(step, X, placement=MESHES["2x4"], in_sbp="B, B", out_sbp="B, B")
    (sent,) = plan.boxings()
    assert (sent.value, sent.collective, str(sent.src)) == ("io_callback", "all_reduce", "P, P")
    assert sent.bytes > 0 and sent.seconds > 0 and "test_effects.py" in sent.source


def test_a_plan_fits_whatever_the_host_has_seen(tmp_path: Any) -> None:
    """What a callback closes over changes from call to call; the plan is the same."""
    h = Host()
    sbp.plan(lambda x: twice(h, x), X, placement=MESHES["8"]).save(tmp_path / "plan.json")
    h.seen.append(("before", 1))
    step = sbp.auto_parallel(lambda x: twice(h, x), plan=sbp.Plan.load(tmp_path / "plan.json"))
    np.testing.assert_array_equal(run(step, X), 2 * X + 3)


def test_a_device_is_named() -> None:
    """``sharding=`` says which device calls; JAX refuses it inside a shard_map."""
    step = sbp.auto_parallel(
        lambda x: x + io_callback(lambda: np.float32(1), SCALAR, sharding=SingleDeviceSharding(jax.devices()[6])),
        placement=MESHES["2x4"],
    )
    np.testing.assert_array_equal(run(step, X), X + 1)
    few = sbp.auto_parallel(
        lambda x: x + io_callback(lambda: np.float32(1), SCALAR, sharding=SingleDeviceSharding(jax.devices()[6])),
        placement=sbp.placement("cpu", ranks=[0, 1]),
    )
    with pytest.raises(sbp.SbpError, match=r"io_callback.* none of the placement's \(ranks \[0, 1\]\)"):
        few(X)


def test_eager_ops_call_once() -> None:
    h = Host()
    x = sbp.tensor(np.arange(8.0, dtype=np.float32), placement=MESHES["8"], sbp="S(0)")
    y = sbp.apply(lambda x: io_callback(h("a"), jax.ShapeDtypeStruct((8,), jnp.float32), x), x)
    np.testing.assert_array_equal(y.numpy(), np.arange(8.0) + 1)
    assert h.of("a") == [list(range(8))]


def test_what_runs_once_is_not_run_again_to_save_memory() -> None:
    """The planner's own rematerialisation leaves effects and the host's numbers alone."""
    h = Host()
    long = jax.ShapeDtypeStruct((8192, 64), jnp.float32)
    square = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.tanh(x @ w)
            x = jnp.sin(x) + io_callback(lambda: h.seen.append(("a", 0)) or np.zeros(long.shape, np.float32), long)
        return (x**2).sum()

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(loss)(w, x)

    where = sbp.placement("cpu", ranks=[0, 1])
    most = sbp.plan(step, square, long, placement=where, donate_argnums=0).memory_per_device
    config = sbp.AutoParallelConfig(remat="auto", memory_limit=0.7 * most)
    made = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=config)
    again = made.plan(square, long).recomputed
    assert again is not None and again.nodes
    run(made, jnp.ones(square.shape), jnp.ones(long.shape))
    assert len(h.seen) == 6


def test_copies_of_a_program_keep_effects() -> None:
    h = Host()
    program = build(jax.make_jaxpr(lambda x: (jax.debug.callback(h.say("a"), x), x + 1)[1])(X))
    copy, _ = recompute(program, 0, ())
    assert [op.name for op in copy.nodes if op.has_effect] == ["debug_callback"]


def test_checkify_works_and_an_unchecked_check_says_how() -> None:
    def f(x: jax.Array) -> jax.Array:
        checkify.check(jnp.all(x >= 0), "negative: {least}", least=x.min())
        return jnp.sqrt(x)

    step = sbp.auto_parallel(checkify.checkify(f), placement=MESHES["2x4"])
    error, y = step(X)
    assert error.get() is None
    np.testing.assert_allclose(y, jnp.sqrt(X))
    error, _ = step(X - 1)
    assert "negative: -1" in (error.get() or "")
    with pytest.raises(sbp.SbpError, match=r"test_effects.py:\d+ \(.*f\): a check .*checkify.checkify\(f\)"):
        sbp.auto_parallel(f, placement=MESHES["2x4"])(X)


def test_prints_come_once(capfd: pytest.CaptureFixture[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.print("first {}", x.sum(), ordered=True)
        jax.debug.print("then {x}", x=x[0], ordered=True)
        return x

    run(sbp.auto_parallel(step, placement=MESHES["2x4"], in_sbp="S(0), B"), X)
    assert capfd.readouterr().out.splitlines() == ["first 120.0", "then [0. 1.]"]


# The base class of effects, which JAX does not name in public.
Effect: Any = type(next(iter(jax.make_jaxpr(lambda: jax.debug.print(""))().effects))).__base__


class StrangeEffect(Effect):
    """One that this library has not heard of."""


def strange() -> Primitive:
    p = Primitive("strange")
    p.def_effectful_abstract_eval(lambda x: (x, {StrangeEffect()}))
    return p


def test_unknown_effects_are_refused_by_name() -> None:
    with pytest.raises(sbp.SbpError, match=r"test_effects.py:\d+ .*: strange has an effect \(StrangeEffect\)"):
        sbp.plan(lambda x: strange().bind(x), X, placement=MESHES["8"])


PROCESS = """
import sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import jax.numpy as jnp, numpy as np, sbp_jax as sbp
from jax.experimental import io_callback

seen = []

def note(x):
    seen.append(float(x))
    return np.float32(x + len(seen))

def f(x):
    def body(c, i):
        y = io_callback(note, jax.ShapeDtypeStruct((), jnp.float32), c.sum() + i, ordered=True)
        jax.debug.callback(lambda v: seen.append(-float(v)), i + 1, ordered=True)
        return c + y, y
    return jax.lax.scan(body, x, jnp.arange(3.0))

where = sbp.placement("cpu", ranks=[[0, 1], [2, 3]], axis_names=("a", "b"))
_, y = jax.block_until_ready(sbp.auto_parallel(f, placement=where)(np.arange(8, dtype=np.float32)))
jax.effects_barrier()
assert {tuple(np.asarray(s.data).tolist()) for s in y.addressable_shards} == {(29.0, 264.0, 2379.0)}
print("SEEN", seen, flush=True)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_one_process_of_several_calls() -> None:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        address = f"localhost:{s.getsockname()[1]}"
    env = os.environ | {
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(sbp.__file__).parents[1]),
    }  # fmt: skip
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, address, str(k)], env=env, text=True, stdout=subprocess.PIPE)
        for k in range(2)
    ]
    said = [p.communicate(timeout=240)[0].split("SEEN")[-1].strip() for p in started]
    assert said == ["[28.0, -1.0, 261.0, -2.0, 2374.0, -3.0]", "[]"]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
@pytest.mark.parametrize("mesh", ["2x4", "1"])
def test_64_bit_types_of_a_context_reach_the_host(mesh: str, dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray([2**40 + 1, 3, 5, 7]).astype(dtype)
        x = x / 3 if jnp.issubdtype(dtype, jnp.inexact) else x
        seen: list[Any] = []

        def note(x: Any) -> Any:
            seen.append((str(x.dtype), np.asarray(x).tolist(), jnp.asarray(1).dtype == jnp.int64))
            return np.asarray(x)

        def program(x: Any) -> Any:
            jax.debug.callback(lambda x: (note(x), None)[1], x)
            jax.debug.callback(lambda x: (note(x), None)[1], x[0], ordered=True)

            def body(k: Any, total: Any) -> Any:
                told = io_callback(note, jax.ShapeDtypeStruct((), x.dtype), x[k], ordered=True)
                return total + told + jax.pure_callback(note, jax.ShapeDtypeStruct((), x.dtype), x[k])

            return lax.fori_loop(0, 4, body, x), io_callback(np.size, jax.ShapeDtypeStruct((), jnp.int64), x)

        found = sbp.auto_parallel(program, placement=MESHES[mesh])(x)
        jax.effects_barrier()
    np.testing.assert_allclose(found[0], np.asarray(x) + 2 * np.asarray(x).sum(), rtol=1e-14)
    assert found[1].tolist() == 4 and found[1].dtype == np.int64
    told = [(dtype, y, True) for y in np.asarray(x).tolist()]
    expected = [(dtype, np.asarray(x).tolist(), True), told[0], *told, *told]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)
