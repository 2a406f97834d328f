"""Tensors and planned functions in a world of four processes: what they give is what numpy and one device give."""

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from world import World

A = np.random.default_rng(0).normal(size=(13, 10)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
W = np.random.default_rng(2).normal(size=(16, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=4, devices=2) as world:
        yield world


def mesh() -> sbp.Placement:
    return sbp.placement("cpu", np.arange(8).reshape(4, 2), axis_names=("dp", "tp"))


def row(*ranks: int) -> sbp.Placement:
    return sbp.placement("cpu", ranks=list(ranks or range(8)))


def whole(x: Any) -> np.ndarray:
    """The value on every process: of a tensor on any devices, of an array on devices of several processes."""
    if isinstance(x, sbp.GlobalTensor):
        return x.to_global(placement=row(), sbp="B").numpy()
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return whole(sbp.tensor(x, placement=row(), sbp="B"))
    return np.asarray(x)


def same(found: list[Any], wanted: Any, rtol: float = 1e-5) -> None:
    """What all four processes have is what is wanted."""
    assert len(found) == 4
    for leaves in found:
        for a, b in zip(jax.tree.leaves(leaves), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=1e-6)


PLACES = {
    "own": (lambda: row(0, 1), ("S(0)", "B", "P")),
    "other": (lambda: row(3, 2), ("S(1)", "P(max)")),
    "two": (lambda: sbp.placement("cpu", [[2, 3], [4, 5]]), ("B, S(1)", "S(0), S(0)")),
    "odd": (lambda: row(6, 1, 3), ("S(0)",)),
    "mesh": (mesh, ("S(0), S(1)", "S(0), P", "B, B")),
    "all": (row, ("S(0)",)),
}
EVERY = [
    (a, first[0], b, second[-1]) for (a, (_, first)), (b, (_, second)) in itertools.permutations(PLACES.items(), 2)
]
FEW = [("mesh", "S(0), P", "own", "P"), ("own", "P", "mesh", "S(0), P"), ("own", "B", "two", "S(0), S(0)")]
# Each pair of places in one direction; the slow test has both.
NUMBER = {name: k for k, name in enumerate(PLACES)}
FEW += [move for move in EVERY if (NUMBER[move[0]] < NUMBER[move[2]]) == bool((NUMBER[move[0]] + NUMBER[move[2]]) % 2)]


def case_moves(moves: list[list[str]]) -> Any:
    wrong = []
    for a, sa, b, sb in moves:
        there = PLACES[b][0]()
        moved = sbp.tensor(A, placement=PLACES[a][0](), sbp=sa).to_global(placement=there, sbp=sb)
        back = whole(moved)
        held = {r for r in there.flat_ranks if r // 2 == jax.process_index()}
        if not np.array_equal(back, A) or len(moved.to_local()) != len(held) or str(moved.sbp) != sb:
            wrong.append([a, sa, b, sb])
    return wrong


@pytest.mark.parametrize("moves", [FEW, pytest.param(EVERY, marks=pytest.mark.slow)], ids=("few", "every"))
def test_tensors_move_between_placements_of_any_processes(world: World, moves: list[tuple[str, ...]]) -> None:
    assert world.run(case_moves, moves, timeout=300) == [[]] * 4


def case_other_types() -> Any:
    values = [A.astype(t) for t in ("int8", "bool", "float16", "complex64")] + [np.float32(3), np.zeros((0, 4), "f")]
    return [
        np.array_equal(whole(sbp.tensor(v, placement=row(0, 1), sbp="B").to_global(placement=row(5, 2))), v)
        for v in values
    ]


def test_tensors_of_other_types_and_of_no_size_move(world: World) -> None:
    assert world.run(case_other_types) == [[True] * 6] * 4


def case_eager() -> Any:
    t, u = sbp.tensor(A, placement=mesh(), sbp="S(0), S(1)"), sbp.tensor(A.T.copy(), placement=mesh(), sbp="B, P")
    some = sbp.tensor(A, placement=row(2, 3, 4), sbp="S(0)")
    gradient = jax.grad(lambda t: (sbp.numpy.sin(t) @ t.T).mean().array)(t)
    back = sbp.local_to_global(t.to_local(), placement=mesh(), sbp="S(0), S(1)")
    return [whole(x) for x in (
        t + A, (t * 2 - 1) / 3, t @ u, t[3:7, 1], sbp.numpy.sum(t, axis=0), sbp.apply(jnp.sort, t), some * 2 + some,
        t.astype("bfloat16").astype("float32"), gradient, back, pickle.loads(pickle.dumps(t)),
        sbp.randn(5, 3, placement=mesh(), sbp="S(0), B", seed=7),
        sbp.randn(5, 3, placement=row(1, 2), sbp="P", seed=7),
        sbp.tensor(jax.device_put(A, jax.local_devices()[1]), placement=mesh(), sbp="S(0), P"),
    )]  # fmt: skip


def test_eager_ops_give_what_numpy_gives(world: World) -> None:
    gradient = jax.grad(lambda a: (jnp.sin(a) @ a.T).mean())(jnp.asarray(A))
    random = jax.random.normal(jax.random.key(7), (5, 3))
    wanted = [
        A + A, (A * 2 - 1) / 3, A @ A.T, A[3:7, 1], A.sum(0), np.sort(A), 3 * A,
        A.astype(jnp.bfloat16).astype(np.float32), gradient, A, A, random, random, A,
    ]  # fmt: skip
    same(world.run(case_eager), wanted, rtol=1e-4)


def case_printed() -> Any:
    here = sbp.tensor(np.arange(3.0), placement=row(2, 3), sbp="B")
    try:
        read = here.numpy().tolist()
    except sbp.PlacementError as error:
        read = str(error)
    equal = sbp.tensor(np.arange(3), placement=mesh(), sbp="B, B")
    return repr(sbp.tensor(A, placement=mesh(), sbp="S(0), B")), repr(equal), repr(here), read


def test_what_a_process_does_not_hold_is_said(world: World) -> None:
    found = world.run(case_printed)
    for k, (split, equal, here, read) in enumerate(found):
        assert split.endswith("sbp=(S(0), B), held by processes 0, 1, 2, 3)") and "([" not in split
        assert equal.startswith("GlobalTensor([0, 1, 2], shape=(3,)")
        if k == 1:
            assert here.startswith("GlobalTensor([0., 1., 2.]") and read == [0, 1, 2]
        else:
            assert here.endswith("held by process 1)")
            assert (
                f"numpy() needs the values, and process {k} of 4 has none" in read
                and "they belong to process 1" in read
            )


def step(state: tuple, x: Any) -> tuple:
    def loss(state: tuple) -> jax.Array:
        return ((jnp.tanh(x @ state[0]) @ state[1]) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda a, b: a - 0.1 * b, state, gradients), value


def case_arguments() -> Any:
    """Arguments in every form, two steps each: the state goes round."""
    d = jax.local_devices()[1]
    forms = {
        "numpy": lambda x: x,
        "arrays": jnp.asarray,
        "own device": lambda x: jax.device_put(x, d),
        "device of one": lambda x: jax.device_put(x, jax.devices()[5]),
        "other order": lambda x: jax.device_put(x, sbp.to_sharding("S(0)", row(7, 6, 5, 4, 3, 2, 1, 0), x.ndim)),
        "tensors": lambda x: sbp.tensor(x, placement=mesh(), sbp="P, S(0)"),
        "some devices": lambda x: sbp.tensor(x, placement=row(2, 3, 5, 4), sbp="S(0)"),
        "one process": lambda x: sbp.tensor(x, placement=row(4, 5), sbp="S(1)"),
    }
    found = {}
    for name, form in forms.items():
        planned = sbp.auto_parallel(step, placement=mesh(), donate_argnums=0)
        state: Any = (form(W), form(W.T.copy()))
        for _ in range(3):
            state, value = planned(state, form(X))
        found[name] = [*map(whole, state), whole(value)]
    return found


def case_compiled() -> list[str]:
    """What is compiled after the first step."""
    planned = sbp.auto_parallel(step, placement=mesh(), donate_argnums=0)
    state: Any = (W, W.T.copy())
    state, _ = planned(state, X)
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            state, _ = planned(state, X)
    finally:
        jax.monitoring.clear_event_listeners()
    return compiled


def test_a_loop_compiles_its_step_once(world: World) -> None:
    """Though the first step takes three values that all processes have, and the others one."""
    assert world.run(case_compiled) == [[]] * 4


def case_inside() -> list[Any]:
    """A planned function inside other transformations, its arguments traced or every process's own."""
    loss = sbp.auto_parallel(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2), placement=mesh())
    looped = jax.jit(lambda: jax.lax.scan(lambda c, _: (c + loss(W, X), None), 0.0, length=3)[0])
    found = [around(loss)(W, X) for around in (lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f)))]
    return [*map(whole, found), whole(looped())]


def test_planned_functions_run_inside_others(world: World) -> None:
    def loss(w: Any, x: Any) -> jax.Array:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    value, grad = loss(jnp.asarray(W), X), jax.grad(loss)(W, X)
    same(world.run(case_inside), [value, value, grad, grad, 3 * value])


def case_elsewhere() -> list[Any]:
    """A step with numbers in its state, on devices of one process: the others run it too, and hold nothing."""
    planned = sbp.auto_parallel(lambda s, x: ({"n": s["n"] + 1, "w": s["w"] * x.mean()}, x.sum()), placement=row(4, 5))
    state: Any = {"n": 0, "w": W}
    for _ in range(3):
        state, value = planned(state, X)
    found = [state["n"], state["w"], value]
    return found if found[0].is_fully_addressable else [x.weak_type for x in found]


def test_a_step_with_numbers_runs_on_devices_of_one_process(world: World) -> None:
    state: Any = {"n": 0, "w": jnp.asarray(W)}
    for _ in range(3):
        state = {"n": state["n"] + 1, "w": state["w"] * X.mean()}
    *others, last = world.run(case_elsewhere)
    found = [others.pop(2)] * 4
    same(found, [state["n"], state["w"], X.sum()], rtol=1e-4)
    assert [*others, last] == [[True, False, False]] * 3


def test_arguments_may_lie_anywhere(world: World) -> None:
    state, value = (jnp.asarray(W), jnp.asarray(W.T)), None
    for _ in range(3):
        state, value = jax.jit(step)(state, X)
    for found in world.run(case_arguments, timeout=300):
        assert len(found) == 8
        for one in found.values():
            same([one] * 4, [*state, value])


def case_programs() -> Any:
    def padded(x: jax.Array) -> jax.Array:
        return jnp.sin(x @ x.T).sum(0)

    key, other = jax.random.key(3), jax.device_put(jax.random.key(3), jax.local_devices()[1])
    normal = sbp.auto_parallel(lambda k: jax.random.normal(k, (16, 8)), placement=mesh())
    constant = jax.device_put(X, jax.local_devices()[1])
    scalars = sbp.auto_parallel(lambda x, a, n: x * a + n, placement=mesh())
    loss = sbp.auto_parallel(lambda s, x: step(s, x)[1], placement=mesh())
    state = W, W.T.copy()
    return [whole(x) for x in jax.tree.leaves((
        sbp.auto_parallel(padded, placement=mesh(), config=sbp.AutoParallelConfig(pad=True))(A),
        sbp.auto_parallel(padded, placement=mesh(), config=sbp.AutoParallelConfig(lowering="gspmd"))(A),
        sbp.auto_parallel(padded, placement="auto")(A),
        sbp.auto_parallel(padded, placement=row(1, 2, 6))(A),
        normal(key), normal(other),
        sbp.auto_parallel(lambda x: x * constant, placement=mesh())(X),
        scalars(X, 0.5, 3), scalars(X, jnp.float32(0.5), np.int32(3)),
        jax.grad(loss)(state, X), jax.jit(lambda s, x: loss(s, x) * 2)(state, X),
    ))]  # fmt: skip


def test_programs_give_what_one_device_gives(world: World) -> None:
    padded = np.sin(A @ A.T).sum(0)
    normal = jax.random.normal(jax.random.key(3), (16, 8))
    state = jnp.asarray(W), jnp.asarray(W.T)
    wanted = [
        *[padded] * 4, normal, normal, X * X, X * 0.5 + 3, X * 0.5 + 3,
        *jax.grad(lambda s: step(s, X)[1])(state), step(state, X)[1] * 2,
    ]  # fmt: skip
    same(world.run(case_programs, timeout=300), wanted, rtol=1e-4)


def case_differing(what: str) -> None:
    odd = jax.process_index() == 2
    planned = sbp.auto_parallel(lambda x, y: (x @ y).sum(0), placement=mesh())
    if what == "argument":
        planned(X, W + odd)
    elif what == "constant":
        constant = X + odd
        sbp.auto_parallel(lambda x: x * constant, placement=mesh())(X)
    elif what == "tensor":
        sbp.tensor(A + odd, placement=mesh(), sbp="S(0), P")
    elif what == "operand":
        _ = sbp.tensor(A, placement=mesh(), sbp="S(0), B") + (A + odd)
    elif what == "elsewhere":
        sbp.auto_parallel(jnp.sin, placement=row(2, 3))(sbp.tensor(X, placement=mesh(), sbp="S(0), B"))


@pytest.mark.parametrize("what", ["argument", "constant", "tensor", "operand"])
def test_values_that_differ_between_processes_are_errors_on_all(world: World, what: str) -> None:
    found = world.errors(case_differing, what)
    name = {"argument": "argument 1", "constant": "constant 0"}.get(what, "the value")
    for kind, text in [x or ("nothing", "") for x in found]:
        assert kind == "ProcessError" and "one value in processes 0, 1, 3, another in 2" in text
        assert name in text and "local_to_global" in text


def test_parts_of_processes_that_are_not_asked_are_an_error(world: World) -> None:
    for kind, text in [x or ("nothing", "") for x in world.errors(case_differing, "elsewhere")]:
        assert kind == "PlacementError" and "processes 0, 1, 2, 3, and is wanted on those of 1 alone" in text


def case_effects() -> Any:
    seen = []

    def f(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: seen.append(round(float(v), 3)), x.sum(), ordered=True)
        y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        jax.debug.callback(lambda v: seen.append(round(float(v), 3)), y[0, 0], ordered=True)
        return y

    y = sbp.auto_parallel(f, placement=mesh())(X)
    if jax.process_index() in (1, 2):
        jax.block_until_ready(sbp.auto_parallel(f, placement=row(5, 4, 2, 3))(X))
    jax.effects_barrier()
    return seen, whole(y)


def test_effects_run_in_the_process_of_the_first_device(world: World) -> None:
    found = world.run(case_effects)
    wanted = [round(float(X.sum()), 3), round(float(np.sin(X)[0, 0]), 3)]
    assert [len(x[0]) for x in found] == [2, 0, 2, 0]
    np.testing.assert_allclose([found[0][0], found[2][0]], [wanted, wanted], atol=2e-3)
    same([x[1] for x in found], np.sin(X))
