"""Counting collectives: known programs, runs counted as they happen, planned ones equal to their plans."""

import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import sbp_jax as sbp
from sbp_jax import _compat
from sbp_jax.lower.count import Tally

ONE_ALL_REDUCE = Tally(1, 2 * 3 / 4 * 512)  # 16 x 8 numbers of float32 among 4 devices


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))


def on_mesh(f, *specs: PartitionSpec, **options):
    """``f`` on pieces; jitted, so that its text is the whole program."""
    ins = specs or (PartitionSpec(),)
    return jax.jit(jax.shard_map(f, mesh=mesh(), in_specs=ins, out_specs=ins[0], check_vma=False), **options)


def whole(*shape: int) -> jax.Array:
    return jax.device_put(jnp.ones(shape), NamedSharding(mesh(), PartitionSpec()))


def summed(x):
    return lax.psum(x, "b")


def test_every_run_counts() -> None:
    f, x = on_mesh(summed), whole(16, 8)
    with sbp.count_collectives() as count:
        f(x)
        assert count["all-reduce"] == ONE_ALL_REDUCE
        f(x)
    f(x)
    assert count["all-reduce"] == count.total == Tally(2, 2 * ONE_ALL_REDUCE.bytes)
    assert count["all-gather"] == Tally() and list(count.kinds) == ["all-reduce"]
    (program,) = count.programs
    assert program.runs == 2 and "summed" in program.name


def test_runs_from_the_shortcut_count_without_compiling_again() -> None:
    traced = []

    def f(x):
        traced.append(1)
        return summed(x)

    g, x = on_mesh(f), whole(16, 8)
    compiled = g.lower(x).compile()
    for h in (g, g, g, compiled, compiled):
        jax.block_until_ready(h(x))
    before = len(traced)
    with sbp.count_collectives() as count:
        for h in (g, compiled, g, compiled):
            jax.block_until_ready(h(x))
    assert count["all-reduce"] == Tally(4, 4 * ONE_ALL_REDUCE.bytes)
    assert len(traced) == before


def test_functions_have_their_shortcuts_back_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src.interpreters import pxla

    f, x = on_mesh(summed), whole(16, 8)
    original = pxla.ExecuteReplicated.__call__
    with sbp.count_collectives():
        jax.block_until_ready(f(x))
    assert pxla.ExecuteReplicated.__call__ is original
    jax.block_until_ready(f(x))
    calls = []
    monkeypatch.setattr(pxla.ExecuteReplicated, "__call__", lambda *a: calls.append(a) or original(*a))
    jax.block_until_ready(f(x))
    assert not calls, "the second run after the block is called from C++ again"


def test_loops_and_donated_arguments() -> None:
    def five(x):
        return lax.scan(lambda x, _: (lax.psum(x, "a") * 0.5, None), x, None, length=5)[0]

    f = on_mesh(five, PartitionSpec("b"), donate_argnums=0)
    x = jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh(), PartitionSpec("b")))
    with sbp.count_collectives() as count:
        y = f(x)
    assert x.is_deleted() and y.shape == (16, 8)
    assert count["all-reduce"] == Tally(5, 5 * 2 * 1 / 2 * 512 / 4)  # a quarter of the rows each, 2 devices
    assert count.notes == ()


def test_plain_jit_with_shardings() -> None:
    x = jax.device_put(jnp.ones((16, 32)), NamedSharding(mesh(), PartitionSpec(None, "b")))
    w = jax.device_put(jnp.ones((32, 8)), NamedSharding(mesh(), PartitionSpec("b", None)))
    f = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(mesh(), PartitionSpec()))
    with sbp.count_collectives() as count:
        f(x, w)
    assert count.kinds == {"all-reduce": ONE_ALL_REDUCE}
    assert count.by_axes(mesh()) == {("b",): {"all-reduce": ONE_ALL_REDUCE}}
    assert sbp.count_collectives(f, x, w).kinds == count.kinds


def test_axes() -> None:
    def f(x):
        x = lax.psum(x, "b") + lax.all_gather(x, "a", tiled=True)[:16]
        return lax.ppermute(lax.pmax(x, ("a", "b")), "b", [(i, (i + 1) % 4) for i in range(4)])

    count = sbp.count_collectives(on_mesh(f), whole(16, 8))
    found = count.by_axes(sbp.placement.from_mesh(mesh()))
    assert {axes: set(kinds) for axes, kinds in found.items()} == {
        ("b",): {"all-reduce", "collective-permute"}, ("a",): {"all-gather"}, ("a", "b"): {"all-reduce"},
    }  # fmt: skip
    assert sum((t for kinds in found.values() for t in kinds.values()), Tally()) == count.total
    assert set(count.by_axes(sbp.placement.abstract((4, 2)))) == {(), ("axis0", "axis1")}, "other groups"
    assert set(count.by_axes(sbp.placement.abstract((2, 2)))) == {()}, "fewer devices"


def test_nothing_runs_when_a_function_is_given() -> None:
    f = on_mesh(summed)
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    for what, args in (
        (f, (x,)), (f.lower(x), ()), (f.lower(x).compile(), ()), (f.lower(x).compile().as_text(), ()),
        (lambda x: f(x), (x,)),
    ):  # fmt: skip
        with sbp.count_collectives() as runs:
            count = sbp.count_collectives(what, *args)
        assert count.kinds == {"all-reduce": ONE_ALL_REDUCE}
        assert runs.programs == ()


def test_a_planned_step_is_its_plan() -> None:
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))

    @sbp.auto_parallel(placement=where, donate_argnums=0, in_sbp=(["(S(1), B)", None], "(S(0), B)"))
    def step(w, x):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w[0]) @ w[1]))(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), loss

    w, x = [jnp.ones((32, 64)), jnp.ones((64, 16))], jnp.ones((16, 32))
    plan = step.plan(w, x)
    planned: dict[str, Tally] = {}
    for b in plan.boxings():
        for move in b.moves:
            if move.is_collective:
                kind = move.kind.replace("_", "-")
                planned[kind] = planned.get(kind, Tally()) + Tally(b.times, b.times * move.bytes)
    assert planned
    assert sbp.count_collectives(plan).kinds == sbp.count_collectives(step, w, x).kinds == planned
    w, _ = step(w, x)  # moves the arguments to their places
    x = jax.device_put(x, NamedSharding(where.mesh, plan.partition_specs()[0][1]))
    with sbp.count_collectives() as count:
        w, _ = step(w, x)
        w, _ = step(w, x)
    assert count.kinds == {kind: t + t for kind, t in planned.items()}
    assert count.total.bytes == pytest.approx(2 * plan.bytes_on_wire)
    assert () not in count.by_axes(where)


def test_eager_tensors_and_nnx() -> None:
    p = sbp.placement("cpu", ranks=[0, 1, 2, 3])
    x = sbp.ones(8, 6, placement=p, sbp=sbp.split(0))
    with sbp.count_collectives() as count:
        np.testing.assert_array_equal(x.to_global(sbp=sbp.broadcast).numpy(), np.ones((8, 6)))
    assert count.kinds == {"all-gather": Tally(1, 3 * 2 * 6 * 4)}

    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    replicated = NamedSharding(mesh(), PartitionSpec())
    nnx.update(model, jax.device_put(nnx.state(model), replicated))
    f = nnx.jit(lambda model, x: model(x).sum())
    batch = jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh(), PartitionSpec("b")))
    with sbp.count_collectives() as count:
        f(model, batch)
    assert count.kinds == {"all-reduce": Tally(1, 2 * 3 / 4 * 4)}  # one number
    assert sbp.count_collectives(f, model, batch).kinds == count.kinds


def test_blocks_nest_and_see_threads() -> None:
    f, x = on_mesh(summed), whole(16, 8)
    with sbp.count_collectives() as outer:
        jax.block_until_ready(f(x))
        with sbp.count_collectives() as inner:
            thread = threading.Thread(target=lambda: jax.block_until_ready(f(x)))
            thread.start()
            thread.join()
        jax.block_until_ready(f(x))
    assert (inner.total.count, outer.total.count) == (1, 3)
    with outer:
        f(x)
    assert outer.total.count == 4, "a block opened again goes on"


def test_a_block_that_fails_ends() -> None:
    with pytest.raises(KeyError), sbp.count_collectives() as count:
        raise KeyError
    on_mesh(summed)(whole(16, 8))
    assert count.programs == () and not _compat._observers


def test_what_is_not_exact_is_said() -> None:
    def until(x):
        return lax.while_loop(lambda x: jnp.sum(x) > 1.0, lambda x: lax.psum(x, "a") * 0.3, x)

    count = sbp.count_collectives(on_mesh(until), whole(16, 8))
    assert count["all-reduce"].count == 1 and len(count.unknown) == 1
    assert "note: 1 collectives are in loops whose trip count is not known: counted for one trip" in str(count)

    def branch(x):
        return lax.cond(x[0, 0] > 0, lambda x: lax.psum(x, "a"), lambda x: lax.psum(x, "b"), x)

    count = sbp.count_collectives(on_mesh(branch), whole(16, 8))
    assert count["all-reduce"].count == 2 and len(count.conditional) == 2
    assert "as if every branch ran" in str(count)


def test_the_table_and_the_data() -> None:
    f, x = on_mesh(summed), whole(16, 8)
    with sbp.count_collectives() as count:
        jax.block_until_ready(f(x))
        jax.block_until_ready(f(x))
    lines = str(count).splitlines()
    assert lines[0] == "Collectives in 2 runs of 1 program" == repr(count).splitlines()[0]
    assert lines[1].split() == ["collective", "count", "bytes", "a", "device", "sends"]
    assert lines[2].split() == ["all-reduce", "2", "1,536"] and lines[3].split() == ["total", "2", "1,536"]
    assert lines[4] == f"  2 x {count.programs[0].name}: 2 (1,536 bytes)"
    data = json.loads(json.dumps(count.to_dict()))
    assert data["kinds"] == {"all-reduce": {"count": 2, "bytes": 1536}} and data["programs"][0]["runs"] == 2
    one = str(sbp.count_collectives(f, x))
    assert one.startswith("Collectives in one run of") and " x " not in one


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: sbp.count_collectives(None, 1), "needs the function first; got None"),
        (lambda: sbp.count_collectives(3), "takes a function and its arguments, .* got int"),
        (lambda: sbp.count_collectives("module @jit_f"), "its text \\(HLO\\), .* got str"),
        (lambda: sbp.count_collectives("HloModule f", 1), "of a str takes no arguments: it is compiled already"),
        (lambda: sbp.count_collectives()["all-reduces"], "did you mean 'all-reduce'\\? Kinds: all-reduce, all-gather"),
        (lambda: sbp.count_collectives(lambda x: x, 1.0).__enter__(), "has counted already"),
    ],
)
def test_errors(wrong, says: str) -> None:
    with pytest.raises(sbp.SbpError, match=says):
        wrong()


def test_a_block_is_not_opened_twice() -> None:
    with sbp.count_collectives() as count, pytest.raises(sbp.SbpError, match="open already"), count:
        pass


def test_another_jax_says_what_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("jaxlib._jax.PjitFunctionCache")
    with pytest.raises(sbp.SbpError, match=r"does not let runs be observed .*sbp.count_collectives\(fn, \*args\)"):
        with sbp.count_collectives():
            pass
