"""Batches behind a signature: the same examples at the same step whatever the mesh, and no others loaded."""

import contextlib
import gc
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.data import order

N = 40


def place(*shape: int) -> sbp.Placement:
    names = ("dp", "tp", "pp")[: len(shape)]
    return sbp.placement("cpu", ranks=np.arange(int(np.prod(shape))).reshape(shape), axis_names=names)


class Watched:
    """A source with indices that remembers which examples it was asked for."""

    def __init__(self, n: int = N) -> None:
        self.n, self.seen = n, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.n:
            raise IndexError(i)
        self.seen.append(i)
        return {"x": np.arange(4, dtype=np.float32) + 10 * i, "label": i}


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


def labels(batches: Any) -> list[list[int]]:
    return [np.asarray(b["label"]).tolist() for b in batches]


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("sbp.data") and t.is_alive()]


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    if threads():
        gc.collect()
    assert threads() == []


@pytest.mark.parametrize(("shape", "sbps"), [
    ((8,), "S(0)"), ((2, 4), "S(0), B"), ((4, 2), "B, S(0)"), ((2, 4), "S(0), S(0)"), ((8,), "B"),
    ((2, 2, 2), "S(0), B, S(0)"),
])  # fmt: skip
def test_the_global_batch_is_the_same_on_every_mesh(shape: tuple[int, ...], sbps: str) -> None:
    found = labels(sbp.data.pipeline(Watched(), placement=place(*shape), sbp=sbps, batch=8, seed=3, epochs=2))
    expected = [order.order(N, 3, e, np.arange(N)).reshape(-1, 8).tolist() for e in range(2)]
    assert found == [*expected[0], *expected[1]]
    assert expected[0] != expected[1] and sorted(flat(expected[1])) == list(range(N))


def test_arrays_lie_where_the_signature_says_and_hold_its_values() -> None:
    p = place(2, 4)
    asked = {"x": "S(0), S(1)", "label": "B, S(0)"}
    for batch in sbp.data.pipeline(Watched(), placement=p, sbp=asked, batch=8):
        assert batch["x"].sharding == sbp.to_sharding("S(0), S(1)", p, 2)
        assert batch["label"].sharding == sbp.to_sharding("B, S(0)", p, 1)
        assert batch["x"].dtype == jnp.float32 and batch["label"].dtype == jnp.int32
        expected = np.arange(4)[None] + 10 * np.asarray(batch["label"])[:, None]
        np.testing.assert_array_equal(batch["x"], expected)
        for shard in batch["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, expected[shard.index])


def test_a_planned_step_takes_the_arrays_without_a_move() -> None:
    p = place(2, 4)

    @sbp.auto_parallel(placement=p, in_sbp=(None, ("S(0), B")), donate_argnums=0)
    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.01 * grad, loss

    rows = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    w = jnp.ones((8, 2))
    batches = iter(sbp.data.pipeline(rows, placement=p, sbp="S(0), B", batch=8, seed=0))
    w, loss = step(w, next(batches))
    w, _ = step(w, next(batches))
    batch = next(batches)
    with jax.transfer_guard("disallow"):
        w, loss = step(w, batch)
    assert np.isfinite(loss)


def test_a_plans_signatures_are_taken() -> None:
    p = place(2, 4)
    step = sbp.auto_parallel(lambda w, b: (b["x"] @ w).sum() + b["label"].sum(), placement=p)
    shapes = {"x": jax.ShapeDtypeStruct((8, 4), "float32"), "label": jax.ShapeDtypeStruct((8,), "int32")}
    inputs, _ = step.plan(jax.ShapeDtypeStruct((4, 2), "float32"), shapes).signatures()
    batch = next(sbp.data.pipeline(Watched(), placement=p, sbp=inputs[1], batch=8, prefetch=0))
    assert batch["x"].sharding == sbp.to_sharding(inputs[1]["x"], p, 2)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("at", [0, 1, 4, 5, 7, 10])
def test_a_restored_pipeline_goes_on_where_the_state_was_taken(prefetch: int, at: int) -> None:
    def make(p: sbp.Placement) -> Any:
        return sbp.data.pipeline(Watched(), placement=p, sbp="S(0)", batch=8, seed=5, epochs=2, prefetch=prefetch)

    whole = labels(make(place(8)))
    first = make(place(8))
    for _ in range(at):
        next(first)
    state = json.loads(json.dumps(first.state()))
    second = make(place(4))
    next(second)
    second.restore(state)
    assert second.step == at and labels(second) == whole[at:]
    assert len(json.dumps(state)) < 300
    first.restore(state)  # and back to it, in the same object
    assert labels(first) == whole[at:]


def test_another_batch_size_goes_on_at_the_same_example() -> None:
    a = sbp.data.pipeline(Watched(), placement=place(8), sbp="S(0)", batch=16, seed=1)
    next(a)
    b = sbp.data.pipeline(Watched(), placement=place(8), sbp="S(0)", batch=8, seed=1)
    b.restore(a.state())
    assert flat(labels(b)) == order.order(N, 1, 0, np.arange(N))[16:].tolist()
    a.close()


def test_remainders() -> None:
    p = place(4, 2)
    kept = list(sbp.data.pipeline(Watched(22), placement=p, sbp="S(0), S(0)", batch=16, drop_remainder=False, epochs=2))
    assert [len(b["label"]) for b in kept] == [16, 6, 16, 6]
    assert kept[1]["label"].sharding.is_equivalent_to(sbp.to_sharding("B, B", p, 1), 1)
    assert sorted(flat(labels(kept[:2]))) == list(range(22))
    two = list(sbp.data.pipeline(Watched(20), placement=p, sbp="S(0), S(0)", batch=16, drop_remainder=False))
    assert two[1]["label"].sharding.is_equivalent_to(sbp.to_sharding("S(0), B", p, 1), 1)
    dropped = sbp.data.pipeline(Watched(22), placement=p, sbp="S(0), B", batch=16, epochs=3)
    assert dropped.steps_per_epoch == 1 and [len(b["label"]) for b in dropped] == [16] * 3


def test_transforms_are_random_by_example_not_by_mesh() -> None:
    def augment(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"label": example["label"], "noise": rng.normal(size=3).astype(np.float32)}

    def run(shape: tuple[int, ...], **options: Any) -> dict[tuple[int, int], bytes]:
        batches = sbp.data.pipeline(
            Watched(), placement=place(*shape), sbp=("S(0)",) if len(shape) == 1 else ("B", "S(0)"), batch=8, seed=2,
            epochs=2, transform=augment, **options,
        )  # fmt: skip
        found = {}
        for k, batch in enumerate(batches):
            for label, noise in zip(np.asarray(batch["label"]), np.asarray(batch["noise"]), strict=True):
                found[k // 5, int(label)] = noise.tobytes()
        return found

    alone = run((8,), prefetch=0)
    assert alone == run((4, 2), threads=4)
    assert len(set(alone.values())) == 2 * N


def test_without_a_seed_the_order_is_the_sources() -> None:
    assert labels(sbp.data.pipeline(Watched(16), placement=place(8), sbp="S(0)", batch=8)) == [
        list(range(8)), list(range(8, 16))
    ]  # fmt: skip
    same = sbp.data.pipeline(Watched(16), placement=place(8), sbp="S(0)", batch=8, seed=0, shuffle=False)
    assert flat(labels(same)) == list(range(16))


@pytest.mark.parametrize("make", [
    lambda x, y: {"x": x, "label": y}, lambda x, y: lambda: {"x": x, "label": y},
    lambda x, y: [{"x": a, "label": b} for a, b in zip(x, y, strict=True)],
    lambda x, y: {"x": jnp.asarray(x), "label": jnp.asarray(y)},
    lambda x, y: ({"x": a, "label": b} for a, b in zip(x, y, strict=True)),
    lambda x, y: lambda: ({"x": a, "label": b} for a, b in zip(x, y, strict=True)),
])  # fmt: skip
def test_sources_of_all_kinds(make: Any) -> None:
    x, y = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32), np.arange(16)
    batches = list(sbp.data.pipeline(make(x, y), placement=place(4), sbp="S(0)", batch=8))
    assert labels(batches) == [list(range(8)), list(range(8, 16))]
    np.testing.assert_array_equal(batches[1]["x"], x[8:])


def test_one_array_and_tuples_of_arrays() -> None:
    x, y = np.arange(24.0).reshape(8, 3), np.arange(8)
    (only,) = sbp.data.pipeline(x, placement=place(4), sbp="S(0)", batch=8)
    np.testing.assert_array_equal(only, x)
    ((a, b),) = sbp.data.pipeline((x, y), placement=place(4), sbp=("S(0)", "B"), batch=8)
    np.testing.assert_array_equal(a, x)
    assert b.sharding.is_fully_replicated and not a.sharding.is_fully_replicated


def test_streams_skip_to_a_state_and_begin_again_each_epoch() -> None:
    reads: list[int] = []

    def numbers() -> Iterator[dict[str, int]]:
        reads.append(0)
        for i in range(20):
            reads[-1] += 1
            yield {"label": i}

    def make() -> Any:
        return sbp.data.pipeline(numbers, placement=place(4), sbp="S(0)", batch=8, epochs=2, seed=0, prefetch=0)

    assert labels(make()) == [list(range(8)), list(range(8, 16))] * 2
    one = make()
    for _ in range(3):
        next(one)
    two = make()
    two.restore(json.loads(json.dumps(one.state())))
    assert labels(two) == [list(range(8, 16))]
    kept = sbp.data.pipeline(numbers, placement=place(4), sbp="S(0)", batch=8, drop_remainder=False)
    assert [len(b["label"]) for b in kept] == [8, 8, 4]


def test_a_generator_that_was_read_cannot_begin_again() -> None:
    pipe = sbp.data.pipeline(({"label": i} for i in range(16)), placement=place(4), sbp="S(0)", batch=8, prefetch=0)
    start = pipe.state()
    next(pipe)
    pipe.restore(start)
    with pytest.raises(sbp.DataError, match=r"a generator, which can be read once and has been read.*source=lambda"):
        next(pipe)
    with pytest.raises(sbp.DataError, match="epochs=3, but the source is a generator, which can be read once"):
        sbp.data.pipeline((i for i in range(16)), placement=place(4), sbp="S(0)", batch=8, epochs=3)


def test_batches_are_made_ahead_and_not_too_many() -> None:
    source = Watched()
    pipe = sbp.data.pipeline(source, placement=place(4), sbp="S(0)", batch=4, prefetch=2)
    next(pipe)
    deadline = time.monotonic() + 20
    while len(source.seen) < 4 * 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    # One given, two ready, one that waits for room.
    assert len(source.seen) == 4 * 4 and pipe.state()["step"] == 1
    assert len(threads()) == 1
    pipe.close()
    assert threads() == []
    assert labels([next(pipe)]) == [[4, 5, 6, 7]]  # it starts again where it stood


def test_threads_end_with_the_block_the_object_and_the_data() -> None:
    with sbp.data.pipeline(Watched(), placement=place(4), sbp="S(0)", batch=4, epochs=None) as pipe:
        next(pipe)
        assert threads()
    assert threads() == []
    pipe = sbp.data.pipeline(Watched(), placement=place(4), sbp="S(0)", batch=4, epochs=None, threads=3)
    next(pipe)
    del pipe
    gc.collect()
    assert threads() == []
    list(sbp.data.pipeline(Watched(), placement=place(4), sbp="S(0)", batch=4))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_loading_raises_is_raised_at_its_step_and_again(prefetch: int) -> None:
    def refuse(example: dict[str, Any]) -> dict[str, Any]:
        if example["label"] == 9:
            raise OSError("the disk is gone")
        return example

    pipe = sbp.data.pipeline(Watched(), placement=place(4), sbp="S(0)", batch=8, transform=refuse, prefetch=prefetch)
    assert labels([next(pipe)]) == [list(range(8))]
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone") as caught:
            next(pipe)
        assert "example 9 of epoch 0" in str(caught.value.__notes__)
    assert pipe.state()["step"] == 1


def test_settings_of_a_block_hold_in_the_thread() -> None:
    with jax.enable_x64(True):
        (batch,) = sbp.data.pipeline({"x": np.arange(8.0)}, placement=place(4), sbp="S(0)", batch=8)
    assert batch["x"].dtype == np.float64


@pytest.mark.parametrize(("source", "options", "words"), [
    ([{"text": "a", "n": 1}] * 8, {}, r"leaf example\['text'\] of example 0 is of type str.*transform="),
    ({"x": np.array(["a"] * 8)}, {}, r"leaf batch\['x'\] is an array.*numbers only"),
    ([object()] * 8, {}, r"leaf example of example 0 is of type object \(object\)"),
    ({"x": np.full(8, np.datetime64("2026-01-01"))}, {}, "datetime64"),
    ([np.zeros(3), np.zeros(4)] * 4, {}, r"example of example 1 is float64\[4\], of the first one float64\[3\]"),
    ([{"a": 1}, {"b": 1}] * 4, {}, "example 1 has the structure"),
    ([1, 2.5] * 4, {}, "example 1 is float64.*of the first one int64"),
    ([None] * 8, {}, "example 0 is None.*to_iter_dataset"),
    (np.array([2**40] * 8), {}, r"int64 with values from 1099511627776.*int32 cannot hold.*jax_enable_x64"),
    (np.zeros((8, 3)), {"sbp": "S(1)"}, r"cuts dimension 1 into 4 pieces, which do not divide 3"),
    ([1.0] * 8, {"sbp": "S(1)"}, r"leaf batch of shape \(8,\)"),
    ([{"a": 1, "b": 2}] * 8, {"sbp": {"a": "S(0)"}}, "sbp does not have the structure of a batch"),
])  # fmt: skip
def test_bad_examples_are_named(source: Any, options: dict[str, Any], words: str) -> None:
    pipe = sbp.data.pipeline(source, placement=place(4), batch=8, **{"sbp": "S(0)", **options})
    with pytest.raises(sbp.SbpError, match=words):
        next(pipe)


@pytest.mark.parametrize(("options", "words"), [
    ({"batch": 30}, r"batch=30 does not divide by 4.*nearest that do: 28, 32"),
    ({"batch": 0}, "batch must be a whole number, 1 or more; got 0"),
    ({"batch": 8.0}, "batch must be a whole number"),
    ({"batch": 64}, r"the source has 40 example\(s\), batch=64.*drop_remainder=False"),
    ({"sbp": "P"}, "data is split or broadcast"),
    ({"sbp": "S(0), B"}, "2 component"),
    ({"sbp": None}, "sbp of a batch is None"),
    ({"placement": None}, "needs placement"),
    ({"placement": sbp.placement.abstract((4,))}, "abstract"),
    ({"source": "abc"}, "source is a str: it holds no examples; possible: arrays"),
    ({"source": {1, 2}}, "its order differs between processes"),
    ({"source": 3}, "source is a int; possible"),
    ({"source": {"a": np.zeros(3), "b": np.zeros(4)}}, r"one length.*source\['a'\] has 3, source\['b'\] has 4"),
    ({"source": {"a": np.float32(1)}}, r"source\['a'\] is one number"),
    ({"source": lambda x: x}, "called without arguments"),
    ({"source": {}}, "empty dict"),
    ({"source": iter([1] * 8), "shuffle": True, "seed": 0}, "a stream has no indices to shuffle by"),
    ({"shuffle": True}, "needs a seed"),
    ({"seed": -1}, "seed must be a whole number, 0 or more"),
    ({"epochs": 0}, "epochs must be"),
    ({"prefetch": -1}, "prefetch must be"),
    ({"transform": 3}, "transform is a function"),
])  # fmt: skip
def test_bad_options_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"source": Watched(), "placement": place(4), "sbp": "S(0)", "batch": 8, **options}
    with pytest.raises(sbp.SbpError, match=words):
        sbp.data.pipeline(given.pop("source"), **given)


@pytest.mark.parametrize(("change", "words"), [
    ({"data": {"examples": 41, "seed": 5, "shuffled": True}}, "examples: 41 there, 40 here"),
    ({"data": {"examples": N, "seed": 6, "shuffled": True}}, "seed: 6 there, 5 here"),
    ({"position": -1}, "restore takes what .state"), ({"epoch": "0"}, "restore takes"),
    ({"step": True}, "restore takes"), ({"version": 99}, "version 99"), ({"data": None}, "other data"),
])  # fmt: skip
def test_states_of_other_data_are_refused(change: dict[str, Any], words: str) -> None:
    pipe = sbp.data.pipeline(Watched(), placement=place(4), sbp="S(0)", batch=8, seed=5)
    state = pipe.state()
    pipe.restore(state)
    with pytest.raises(sbp.DataError, match=words):
        pipe.restore({**state, **change})
    for other in ([], None, "x"):
        with pytest.raises(sbp.DataError, match="restore takes"):
            pipe.restore(other)  # pyright: ignore[reportArgumentType]


def test_an_endless_source_that_gives_nothing_is_an_error() -> None:
    pipe = sbp.data.pipeline(lambda: iter([1, 2]), placement=place(4), sbp="S(0)", batch=4, epochs=None)
    with pytest.raises(sbp.DataError, match="no whole batch of 4 in epoch 0"):
        next(pipe)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, (1 << 20) + 5])
def test_the_order_is_a_permutation(n: int) -> None:
    found = order.order(n, 1, 2, np.arange(n))
    assert np.array_equal(np.sort(found), np.arange(n))
    if n > 3:
        assert not np.array_equal(found, order.order(n, 1, 3, np.arange(n)))
        assert not np.array_equal(found, order.order(n, 2, 2, np.arange(n)))


def test_the_order_of_a_walk_is_a_permutation_and_stays_what_it_was() -> None:
    for n in (2, 3, 50, 1001):
        assert np.array_equal(np.sort(order._walk(n, 7, 3, np.arange(n))), np.arange(n))
    # A saved state means these orders: they may not change.
    assert order.order(10, 0, 0, np.arange(10)).tolist() == [0, 7, 4, 9, 2, 1, 6, 8, 5, 3]
    assert order.order(10**12, 0, 0, np.arange(2)).tolist() == [19954848203, 425726194110]


def test_every_first_example_is_as_likely_as_another() -> None:
    counts = np.bincount([int(order.order(5, s, e, np.arange(1))[0]) for s in range(100) for e in range(20)])
    assert counts.min() > 320 and counts.max() < 480


def test_the_lock_lets_several_threads_take_batches() -> None:
    pipe = sbp.data.pipeline(Watched(), placement=place(4), sbp="S(0)", batch=4, seed=0)
    found: list[list[int]] = []

    def take() -> None:
        with contextlib.suppress(StopIteration):
            while True:
                found.append(np.asarray(next(pipe)["label"]).tolist())

    workers = [threading.Thread(target=take) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert sorted(flat(found)) == list(range(N))
