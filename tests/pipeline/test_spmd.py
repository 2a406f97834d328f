"""Pipelines as one program, against plain ``jax.jit`` and the actors: schedules, models, memory, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
import zoo
from pipeline.steps import batch, check, mlp_state, mlp_step
from pipeline.test_pipeline import EIGHT, SYNCHRONOUS, TWO, arrays, crossed, normed
from sbp_jax import boxing
from sbp_jax.lower.hlo import collectives
from sbp_jax.schedules import peak_held, schedules

FOUR = sbp.placement("cpu", ranks=range(4))


def options(*args: Any, **kwargs: Any) -> sbp.AutoParallelConfig:
    return sbp.AutoParallelConfig(pipeline=sbp.Pipeline(*args, **kwargs, execution="spmd"))


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_every_schedule_gives_the_numbers_of_no_pipeline(name: str) -> None:
    chunks = 2 if schedules()[name].chunks is None else None
    check(mlp_step, lambda: mlp_state(8), batch(), sbp.Pipeline(4, 8, name, chunks, execution="spmd"), FOUR)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_every_schedule_gives_what_the_actors_give_and_where_they_do(name: str) -> None:
    chunks = 2 if schedules()[name].chunks is None else None
    run, actors = (
        sbp.auto_parallel(
            mlp_step, placement=TWO, donate_argnums=0,
            config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 4, name, chunks, execution=execution)),
        )
        for execution in ("spmd", "actors")
    )  # fmt: skip
    found, expected = run(mlp_state(), batch()), actors(mlp_state(), batch())
    close(found, expected, 1e-6)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.sharding == b.sharding and a.weak_type == b.weak_type
    actors.close()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "lstm", "dlrm"])
def test_stages_are_planned_over_their_devices(model: str) -> None:
    case = zoo.build(model)
    data = case.batch(0)
    run = sbp.auto_parallel(case.step, placement=EIGHT, donate_argnums=0, config=options(2, 4))
    state, loss = run(case.init(), data)
    right, expected = jax.jit(case.step)(case.init(), data)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(right), strict=True):
        # Adam divides a gradient by its size: where it is zero but for rounding, so is the update's sign.
        if "b_k" not in jax.tree_util.keystr(path) and jnp.issubdtype(b.dtype, jnp.number):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("name", "stages", "chunks"),
    [
        ("interleaved_1f1b", 2, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("1f1b", 4, None), ("zb_v", 2, None), ("chimera", 4, None))
        ),
    ],
)
def test_an_encoder_is_read_by_all_stages_of_a_decoder_and_shares_its_embedding(
    name: str, stages: int, chunks: int | None
) -> None:
    def state() -> Any:
        rng = np.random.default_rng(0)
        layers = {k: [[jnp.asarray(rng.normal(size=(16, 16)) / 8, jnp.float32) for _ in range(3)] for _ in range(3)]
                  for k in ("encoder", "decoder", "cross")}  # fmt: skip
        return {"embed": jnp.asarray(rng.normal(size=(32, 16)), jnp.float32), **layers}

    rng = np.random.default_rng(1)
    source, target = rng.integers(0, 32, (8, 12)), rng.integers(0, 32, (8, 10))
    run = sbp.auto_parallel(crossed, placement=FOUR, donate_argnums=0, config=options(stages, 4, name, chunks))
    mine, right = state(), state()
    for _ in range(2):
        mine, loss = run(mine, source, target)
        right, expected = jax.jit(crossed)(right, source, target)
        close((mine, loss), (right, expected), 1e-5)


def steps_of(run: Any, state: Any, data: Any, n: int = 2) -> Any:
    for _ in range(n):
        state, told = run(state, data)
    return state, told


def loop_and_rest(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """How often collectives run in a compiled step, by kind: those in the loop over time slots, and the others."""
    found: tuple[dict[str, float], dict[str, float]] = {}, {}
    for c in collectives(text):
        if c.group_size > 1 or c.kind == "collective-permute":
            by_kind = found[0 if c.times > 1 else 1]
            by_kind[c.kind] = by_kind.get(c.kind, 0) + c.times
    return found


def test_it_is_one_program_that_permutes_in_its_loop() -> None:
    run = sbp.auto_parallel(mlp_step, placement=TWO, donate_argnums=0, config=options(2, 4))
    inside, rest = loop_and_rest(run.lower(mlp_state(), batch()).compile().as_text())
    slots = 2 * (4 + 1)
    assert inside == {"collective-permute": slots}  # activations there, and gradients of that type back, at once
    assert set(rest) == {"collective-permute"}  # the norm's terms and the norm
    run(mlp_state(), batch())
    with sbp.count_collectives() as count:
        steps_of(run, mlp_state(), batch(), 3)
    assert [(p.name, p.runs) for p in count.programs if p.collectives] == [("jit(sbp_pipeline)", 3)]


def test_weights_are_gathered_once_before_the_loop_and_gradients_reduced_once_after() -> None:
    case = zoo.build("gpt", dropout=0.0)
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 4, execution="spmd"), solver="zero2")
    run = sbp.auto_parallel(case.step, placement=EIGHT, donate_argnums=0, config=config)
    inside, rest = loop_and_rest(run.lower(case.init(), case.batch(0)).compile().as_text())
    assert set(inside) == {"collective-permute"}
    assert rest["all-gather"] > 0 and rest.get("reduce-scatter", 0) + rest.get("all-reduce", 0) > 0


def test_a_group_holds_no_more_than_its_schedule_promises() -> None:
    # What a micro-batch leaves for its backward part, and what it waits for, once for each that is under way.
    for name in ("gpipe", "1f1b", "zb_h1"):
        run = sbp.auto_parallel(mlp_step, placement=FOUR, donate_argnums=0, config=options(4, 8, name))
        run(mlp_state(8), batch())
        (entry,) = run._entries.values()  # pyright: ignore
        table = entry.step.program.table
        schedule = run.plan(mlp_state(8), batch()).schedule
        for rank, promised in enumerate(peak_held(schedule)):
            for kind in table.registers.count:
                own = {key: k for (r, key), k in table.registers.at.items() if r == rank and table.types[key] == kind}
                parts = {key[:-1] for key in own if key[0] in ("residual", "arrived")}
                rest = sum(key[0] not in ("residual", "arrived") for key in own)
                # One more: what has arrived, and waits for its forward or backward part.
                assert len(set(own.values())) <= (promised + 1) * len(parts) + rest


def bits(state: Any, data: Any, key: jax.Array) -> Any:
    """A step with a table that integers look up in, bfloat16 compute, float32 weights, dropout and a count of steps."""

    def loss(p: Any) -> jax.Array:
        h = p["table"][data["tokens"]].astype(jnp.bfloat16)
        for k, w in enumerate(p["layers"]):
            h = h + jnp.tanh(h @ w.astype(jnp.bfloat16))
            h = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, k), 0.9, h.shape), h, 0)
        return jnp.mean(jnp.square(h.astype(jnp.float32).mean(1) - data["y"]))

    value, g = jax.value_and_grad(loss)(state["p"])
    p = jax.tree.map(lambda a, b: a - 0.1 * b, state["p"], g)
    return {"p": p, "count": state["count"] + 1}, (value, state["count"])


def bits_state() -> Any:
    rng = np.random.default_rng(0)
    layers = [jnp.asarray(rng.normal(size=(16, 16)) / 4, jnp.float32) for _ in range(4)]
    return {"p": {"table": jnp.asarray(rng.normal(size=(32, 16)), jnp.float32), "layers": layers},
            "count": jnp.zeros((), jnp.int32)}  # fmt: skip


def test_integers_half_precision_random_bits_and_donation() -> None:
    rng = np.random.default_rng(1)
    data = {"tokens": rng.integers(0, 32, (16, 4)).astype(np.int32), "y": rng.normal(size=(16, 16)).astype(np.float32)}
    run = sbp.auto_parallel(bits, placement=EIGHT, donate_argnums=0, config=options(2, 4))
    mine, right = bits_state(), bits_state()
    for k in range(3):
        before, key = mine, jax.random.key(k)
        mine, told = run(mine, data, key)
        right, expected = jax.jit(bits)(right, data, key)
        close((mine, told), (right, expected), 2e-2)
        if k:  # its own results are where they are wanted, and their memory is used again
            assert all(x.is_deleted() for x in jax.tree.leaves(before))
    assert [min(d.id for d in w.devices()) for w in mine["p"]["layers"]] == [0, 0, 4, 4]


def test_nothing_is_taken_that_was_not_donated() -> None:
    p, x, y = arrays()

    def step(p: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(lambda p: jnp.mean((jax.nn.relu(x @ p[0]) @ p[1] - y) ** 2))(p)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value

    run = sbp.auto_parallel(step, placement=TWO, config=options(2, 3))
    for _ in range(3):
        q, loss = run(p, x, y)
        close((q, loss), step(*jax.tree.map(np.asarray, (p, x, y))), 1e-5)
        p = q
    assert not any(w.is_deleted() for w in p)


def test_what_cannot_be_one_program_is_refused() -> None:
    unlike = sbp.placement("cpu", ranks=range(3))

    def marked(p: Any, x: Any, y: Any) -> Any:
        with sbp.scope(placement=sbp.placement("cpu", ranks=[0])):
            h = x @ p[0]
        with sbp.scope(placement=sbp.placement("cpu", ranks=[1, 2])):
            return jnp.mean((h @ p[1] - y) ** 2)

    run = sbp.auto_parallel(marked, placement=unlike, config=options())
    with pytest.raises(sbp.PlanError, match=r"whose groups must have one shape: .* differ\. Give a number of stages"):
        run(*arrays())

    def printing(p: Any, x: Any, y: Any) -> Any:
        h = x @ p[0]
        jax.debug.print("{}", h.sum(), ordered=True)
        return jnp.mean((h @ p[1] - y) ** 2)

    run = sbp.auto_parallel(printing, placement=TWO, config=options(2))
    with pytest.raises(sbp.SbpError, match=r"effects that happen in order"):
        run(*arrays())
    with pytest.raises(sbp.PlanError, match=r"execution is 'actors' .* or 'spmd' .*, got 'mpmd'"):
        sbp.Pipeline(2, execution="mpmd")
    run = sbp.auto_parallel(normed, placement=TWO, config=options(2))
    close(run(*arrays()), normed(*arrays()), 1e-5)
    with pytest.raises(sbp.PlanError, match=r'with execution="spmd" as one program, .*jax\.profiler'):
        run.record()


def test_pieces_change_places_without_a_permute() -> None:
    # In a branch that only some devices take, XLA for CPUs would wait for the others at a permute.
    where = sbp.placement("cpu", ranks=np.arange(4).reshape(2, 2), axis_names=("a", "b"))
    x = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    route = boxing.route("S(0), S(1)", "S(1), S(0)", where, x.shape)
    texts = []
    for gathers in (False, True):

        def moved(piece: jax.Array, gathers: bool = gathers) -> jax.Array:
            with boxing.without_permutes(gathers):
                return boxing.apply(route, piece, where.axis_names)

        specs = jax.sharding.PartitionSpec("a", "b"), jax.sharding.PartitionSpec("b", "a")
        run = jax.jit(jax.shard_map(moved, mesh=where.mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))
        np.testing.assert_array_equal(run(x), x)
        texts.append(run.lower(x).compile().as_text())
    assert ["collective-permute" in text for text in texts] == [True, False]


def test_stages_are_chosen_among_groups_alike() -> None:
    run = sbp.auto_parallel(mlp_step, placement=EIGHT, donate_argnums=0, config=options(microbatches=4))
    close(run(mlp_state(), batch()), jax.jit(mlp_step)(mlp_state(), batch()))
    plan: Any = run.plan(mlp_state(), batch())
    assert len({p.placement.shape for p in plan.stages}) == 1
    assert plan.notes[0].startswith(f"{plan.schedule.ranks} groups of devices alike, the best of ")
    chimera = sbp.auto_parallel(mlp_step, placement=EIGHT, config=options(microbatches=4, schedule="chimera"))
    assert chimera.plan(mlp_state(), batch()).schedule.ranks in (2, 4, 8)  # pyright: ignore
