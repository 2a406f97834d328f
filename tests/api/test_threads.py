"""Eight threads trace, plan and call at once."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sbp_jax as sbp
from sbp_jax import ahead
from sbp_jax.boxing import matrix
from sbp_jax.cluster import CPU
from sbp_jax.signature import Signature
from sbp_jax.trace import without_collecting

THREADS = 8
PLACES = [
    sbp.placement("cpu", np.arange(8).reshape(shape), axis_names=("dp", "tp", "pp")[: len(shape)])
    for shape in ((8,), (2, 4), (4, 2), (2, 2, 2))
]


@pytest.fixture(autouse=True)
def often_interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads take turns a thousand times as often as usual, and the cache of seconds is full at once."""
    monkeypatch.setattr(matrix, "_MOST_KNOWN", 2)
    matrix._KNOWN.clear()
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], n: int = THREADS) -> list[Any]:
    """``work(k)`` in ``n`` threads that begin together; its results, or the first error."""
    begin, results, errors = threading.Barrier(n), {}, []

    def run(k: int) -> None:
        try:
            begin.wait()
            results[k] = work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert not any(t.is_alive() for t in threads), "threads wait for each other"
    if errors:
        raise errors[0]
    return [results[k] for k in range(n)]


def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"]))(w)
    return jax.tree.map(lambda p, d: p - 0.1 * d, w, g), loss


def arguments(k: int) -> tuple[Any, Any]:
    n = 8 * (k + 1)
    return {"a": jnp.full((n, 16), 0.01), "b": jnp.full((16, n), 0.02)}, jnp.ones((16, n))


class Forgetful(dict[Any, Any]):
    """A cache that another thread clears as soon as it was looked at, or written to."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.clear()


def test_what_is_cached_may_be_forgotten_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [Signature.parse(s) for s in ("S(0), B", "B, S(1)", "P, B", "B, B")]

    def seconds() -> list[np.ndarray]:
        asked = states, (8, 16), 4, (2, 4), CPU, ()
        return [matrix.seconds_matrix(*asked), matrix.padded_seconds_matrix(*asked)]

    wanted = seconds()
    for cache in (Forgetful(), Forgetful(matrix._KNOWN), Forgetful(matrix._KNOWN)):
        monkeypatch.setattr(matrix, "_KNOWN", cache)
        for a, b in zip(seconds(), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_seconds_between_signatures() -> None:
    states = [Signature.parse(s) for s in ("S(0), B", "B, S(1)", "P, B", "B, B")]
    shapes = [(8 * k, 16) for k in range(1, 9)]
    wanted = [matrix.seconds_matrix(states, shape, 4, (2, 4), CPU, ()) for shape in shapes]

    def work(k: int) -> None:
        for r in range(400):
            n = (k + r) % 8 if r % 2 else 0
            np.testing.assert_array_equal(matrix.seconds_matrix(states, shapes[n], 4, (2, 4), CPU, ()), wanted[n])

    at_once(work)


def test_different_functions_are_planned_and_called() -> None:
    def work(k: int) -> Any:
        args = arguments(k)
        planned = sbp.auto_parallel(lambda w, x: step(w, x), placement=PLACES[k % 4])
        _, loss = planned(*args)
        assert str(planned.plan(*args))
        np.testing.assert_allclose(loss, step(*args)[1], rtol=1e-4)
        return planned.plan(*args)

    for k, plan in enumerate(at_once(work)):
        alone = sbp.plan(step, *arguments(k), placement=PLACES[k % 4])
        assert plan.objective == alone.objective and plan.signatures() == alone.signatures()


def test_one_function_is_planned_once_for_each_set_of_shapes() -> None:
    traced = []

    def counted(w, x):
        traced.append(x.shape)
        return step(w, x)

    planned = sbp.auto_parallel(counted, placement=8)

    def work(k: int) -> list[Any]:
        return [planned(*arguments((k + r) % 3))[1] for r in range(6)]

    for k, losses in enumerate(at_once(work)):
        for r, loss in enumerate(losses):
            np.testing.assert_allclose(loss, step(*arguments((k + r) % 3))[1], rtol=1e-4)
    assert len(traced) == 3 and len({str(e.plan.placement) for e in planned._entries.values()}) == 1


def test_settings_are_each_threads_own() -> None:
    planned = sbp.auto_parallel(lambda x: x + jnp.arange(8), placement=PLACES[0])

    def work(k: int) -> list[Any]:
        with jax.enable_x64(k % 2 == 0):
            return [planned(np.ones(8)).dtype for _ in range(20)]

    for k, found in enumerate(at_once(work)):
        assert set(found) == {np.dtype("float64" if k % 2 == 0 else "float32")}


@pytest.mark.filterwarnings("ignore:.*is planned again")
def test_eager_ops_and_modules() -> None:
    def scaled(model, x):
        return model(x) * 2.0

    run = sbp.flax.jit(scaled, placement=PLACES[0])

    def work(k: int) -> float:
        x = sbp.tensor(np.full((8, k + 1), 2.0, np.float32), placement=PLACES[0], sbp=sbp.split(0))
        total = float(sbp.numpy.sum(x @ sbp.numpy.transpose(x)).numpy())
        model = nnx.Linear(8, k + 1, rngs=nnx.Rngs(k))
        np.testing.assert_allclose(run(model, jnp.ones((8, 8))), model(jnp.ones((8, 8))) * 2.0, rtol=1e-5)
        return total

    assert at_once(work) == [8 * 8 * 4.0 * (k + 1) for k in range(THREADS)]


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("n", [THREADS, 64])
def test_many_programs_at_once_end(n: int, is_eager: bool) -> None:
    """Threads starting programs faster than simulated devices run them fill XLA's pool of threads, and stood still."""

    def more(x):
        return x + 1

    placed = sbp.tensor(np.zeros(1 << 18, np.float32), placement=PLACES[0], sbp=sbp.split(0))
    x, run = (placed, more) if is_eager else (placed.storage, sbp.auto_parallel(more, placement=PLACES[0]))

    def work(k: int) -> Any:
        value = x
        for _ in range(1600 // n):
            value = run(value)
        return value

    for value in at_once(work, n):
        np.testing.assert_array_equal(value.numpy() if is_eager else value, 1600 // n)


def test_a_program_may_wait_for_another_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a host callback that runs one: all turns may be taken by programs that wait for such."""
    monkeypatch.setattr(ahead, "_AT_ONCE", threading.Semaphore(1))
    monkeypatch.setattr(ahead, "_TURN_SECONDS", 0.2)
    found = []

    def outer(x):
        other = threading.Thread(target=lambda: found.append(ahead.to_its_end(jnp.add, x, 1)), daemon=True)
        other.start()
        other.join(60)
        return ahead.to_its_end(jnp.add, found[0], 1)

    assert ahead.to_its_end(outer, 1) == 3 and ahead.to_its_end(outer, 2) == 3
    assert ahead._AT_ONCE.acquire(blocking=False) and not ahead._AT_ONCE.acquire(blocking=False)


@pytest.mark.parametrize("runs", [True, False])
def test_the_garbage_collector_runs_again_after_the_last_block(runs: bool) -> None:
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    seen = []

    def first() -> None:
        with without_collecting():
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        with without_collecting():
            second_in.set()
            first_out.wait(10)
            seen.append(gc.isenabled())

    before = gc.isenabled()
    (gc.enable if runs else gc.disable)()
    try:
        threads = [threading.Thread(target=f) for f in (first, second)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert seen == [False] and gc.isenabled() is runs
    finally:
        (gc.enable if before else gc.disable)()
