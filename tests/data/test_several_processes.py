"""Four processes of two devices: each loads its share, all give the batches that one process gives."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import sbp_jax as sbp
from world import World

N = 48


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=4, devices=2) as started:
        yield started


class Watched:
    """A source with indices that remembers which examples it was asked for."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        self.seen.append(i)
        return {"x": np.arange(4, dtype=np.float32) + 10 * i, "label": i}


def augment(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**example, "noise": rng.normal(size=2).astype(np.float32)}


def make(shape: list[int], signature: str, source: Any, **options: Any) -> Any:
    ranks = np.arange(int(np.prod(shape))).reshape(shape)
    p = sbp.placement("cpu", ranks=ranks, axis_names=("dp", "tp")[: len(shape)])
    return sbp.data.pipeline(
        source, placement=p, sbp=signature, batch=8, seed=4, epochs=2, transform=augment, **options
    )


def case_batches(shape: list[int], signature: str, kind: str) -> dict[str, Any]:
    """Every batch, of this process's pieces, and what it has read."""
    source = Watched()
    given = source if kind == "indexed" else lambda: iter([source[i] for i in range(N)])
    batches, local = [], []
    for batch in make(shape, signature, given, prefetch=0):
        local.append(sorted({int(x) for s in batch["label"].addressable_shards for x in np.asarray(s.data)}))
        batches.append({k: [(_box(s.index, x.shape), np.asarray(s.data)) for s in x.addressable_shards]
                        for k, x in batch.items()})  # fmt: skip
    return {"batches": batches, "seen": source.seen, "local": local}


def _box(index: Any, shape: tuple[int, ...]) -> list[list[int]]:
    return [[*i.indices(n)[:2]] for i, n in zip(index, shape, strict=True)]


def case_restored(state: dict[str, Any], shape: list[int], signature: str) -> list[Any]:
    pipe = make(shape, signature, Watched())
    pipe.restore(state)
    from jax.experimental import multihost_utils

    return [np.asarray(multihost_utils.process_allgather(batch["label"], tiled=True)) for batch in pipe]


def case_a_step(signature: str) -> tuple[float, list[Any]]:
    """A planned step on the batches, while the next ones are made."""
    import jax
    import jax.numpy as jnp

    p = sbp.placement("cpu", ranks=np.arange(8).reshape(4, 2), axis_names=("dp", "tp"))

    @sbp.auto_parallel(placement=p, in_sbp=(None, signature), donate_argnums=0)
    def step(w: Any, batch: Any) -> Any:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["label"]) ** 2))(w)
        return w - 1e-6 * grad, loss

    w, losses = jnp.ones(4), []
    pipe = make([4, 2], signature, Watched())
    for batch in pipe:
        w, loss = step(w, {k: batch[k] for k in ("x", "label")})
        losses.append(float(loss))
    return pipe.state(), losses


def alone(shape: list[int], signature: str, **options: Any) -> list[dict[str, np.ndarray]]:
    return [{k: np.asarray(x) for k, x in b.items()} for b in make(shape, signature, Watched(), **options)]


@pytest.mark.parametrize(("shape", "signature", "kind"), [
    ([8], "S(0)", "indexed"), ([2, 4], "S(0), B", "indexed"), ([4, 2], "B, S(0)", "indexed"), ([8], "B", "indexed"),
    ([8], "S(0)", "stream"), ([2], "S(0)", "indexed"),
])  # fmt: skip
def test_batches_are_those_of_one_process(world: World, shape: list[int], signature: str, kind: str) -> None:
    answers = world.run(case_batches, shape, signature, kind)
    expected = (
        alone(shape, signature)
        if kind == "indexed"
        else [{k: np.asarray(x) for k, x in b.items()} for b in
              make(shape, signature, lambda: iter([Watched()[i] for i in range(N)]))]
    )  # fmt: skip
    covered = 0
    for answer in answers:
        assert len(answer["batches"]) == len(expected) == 12
        for found, wanted in zip(answer["batches"], expected, strict=True):
            for name in wanted:
                for box, piece in found[name]:
                    np.testing.assert_array_equal(piece, wanted[name][tuple(slice(*span) for span in box)])
                    covered += piece.size
        if kind == "stream":
            assert answer["seen"] == 2 * list(range(N))  # all of it, as the docs say
            continue
        if any(answer["local"]):
            held = [x for batch in answer["local"] for x in batch]
            assert sorted(answer["seen"]) == sorted(held)
    assert covered >= sum(x.size for batch in expected for x in batch.values())
    if kind == "indexed" and signature == "S(0)" and shape == [8]:
        assert [len(a["seen"]) for a in answers] == [2 * N // 4] * 4
    if shape == [2]:  # two devices of the first process: the others look at one example of a batch
        assert [len(a["seen"]) for a in answers] == [2 * N, 12, 12, 12]


def test_a_state_of_one_process_goes_on_in_four(world: World) -> None:
    pipe = make([8], "S(0)", Watched())
    for _ in range(7):
        next(pipe)
    state = pipe.state()
    rest = [np.asarray(b["label"]).tolist() for b in pipe]
    for shape, signature in (([8], "S(0)"), ([2, 4], "B, S(0)")):
        for answer in world.run(case_restored, state, shape, signature):
            assert [np.asarray(x).tolist() for x in answer] == rest


def test_a_planned_step_takes_them_in_all_processes(world: World) -> None:
    answers = world.run(case_a_step, "S(0), B")
    states, losses = zip(*answers, strict=True)
    assert all(s == states[0] for s in states) and states[0]["step"] == 12
    assert all(x == losses[0] for x in losses) and losses[0][-1] < losses[0][0]
