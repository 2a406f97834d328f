"""The front door: what it accepts, what it refuses, plans saved and read back."""

import functools
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import sbp_jax as sbp


def place(*shape: int) -> sbp.Placement:
    size = int(np.prod(shape))
    return sbp.placement("cpu", np.arange(size).reshape(shape), axis_names=("dp", "tp", "pp")[: len(shape)])


def loss_fn(w, x):
    return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])


def train_step(w, x):
    loss, g = jax.value_and_grad(loss_fn)(w, x)
    return jax.tree.map(lambda p, d: p - 0.1 * d, w, g), loss


def weights():
    k = jax.random.key(0)
    return {"a": jax.random.normal(k, (64, 256)), "b": jax.random.normal(k, (256, 8))}


X = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)


def test_a_training_loop_never_moves_its_state() -> None:
    step = sbp.auto_parallel(train_step, placement=place(2, 4), donate_argnums=0)
    w, expected = weights(), weights()
    for _ in range(3):
        w, loss = step(w, X)
        expected, wanted = jax.jit(train_step)(expected, X)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    ins, outs = step.plan(w, X).signatures()
    assert ins[0] == outs[0]
    specs, _ = step.plan(w, X).partition_specs()
    assert w["a"].sharding.spec == specs[0]["a"]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("batch", [X, jnp.asarray(X)], ids=["numpy", "jax"])
@pytest.mark.parametrize("mesh", [(2, 4), (1,)], ids=str)
def test_a_loop_compiles_its_step_once(mesh: tuple[int, ...], batch: object) -> None:
    """On one device, too, where the first state lies where the plan wants it, but on no mesh; and with a new state."""
    step = sbp.auto_parallel(train_step, placement=place(*mesh), donate_argnums=0)
    w, anew, compiled = weights(), weights(), []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    w, _ = step(w, batch)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            w, _ = step(w, batch)
        step(anew, batch)
        assert not compiled
        jax.jit(lambda x: x + 0.25)(X)  # it does listen
        assert compiled
    finally:
        jax.monitoring.clear_event_listeners()


def test_as_a_decorator_with_keywords_and_static_arguments() -> None:
    @sbp.auto_parallel(placement=place(8), static_argnums=1)
    def f(x, power, *, scale):
        return (x**power).sum() * scale

    assert f(np.ones(16, np.float32), 2, scale=3.0) == 48.0
    assert f(np.full(16, 2.0, np.float32), 3, scale=1.0) == 128.0


def test_arguments_sharded_anyhow_are_moved_once() -> None:
    step = sbp.auto_parallel(train_step, placement=place(2, 4), donate_argnums=0)
    on_one = jax.device_put(weights(), jax.devices()[3])
    w, loss = step(on_one, jax.device_put(X, jax.devices()[5]))
    w, again = step(w, jax.device_put(X, jax.devices()[5]))
    np.testing.assert_allclose(loss, loss_fn(weights(), X), rtol=1e-5)
    assert again < loss + 1


def test_closed_over_arrays() -> None:
    table = jnp.arange(64.0).reshape(8, 8)
    f = sbp.auto_parallel(lambda x: (x @ table).sum(), placement=place(8))
    np.testing.assert_allclose(f(jnp.ones((8, 8))), (jnp.ones((8, 8)) @ table).sum())
    np.testing.assert_allclose(f(jnp.ones((8, 8))), (jnp.ones((8, 8)) @ table).sum())


def test_inside_other_transformations() -> None:
    """JAX takes a compiler's options at the outermost ``jax.jit`` alone."""
    loss = sbp.auto_parallel(loss_fn, placement=place(2, 4))
    w = weights()
    for around in (lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))):
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7),
            around(loss)(w, X),
            around(loss_fn)(w, X),
        )
    assert loss(w, X) == loss(w, X)
    looped = jax.jit(lambda: jax.lax.scan(lambda c, _: (c + loss(w, X), None), 0.0, length=3)[0])
    np.testing.assert_allclose(looped(), 3 * loss_fn(w, X), rtol=1e-5)


def test_lower_is_as_jits() -> None:
    step = sbp.auto_parallel(train_step, placement=place(2, 4), donate_argnums=0)
    shapes = jax.eval_shape(weights), jax.ShapeDtypeStruct(X.shape, X.dtype)
    compiled = step.lower(*shapes).compile()
    assert "HloModule" in compiled.as_text() and compiled.memory_analysis() is not None
    assert step.plan(*shapes).verify(compiled).exact


def test_plan_from_shapes_on_an_abstract_mesh() -> None:
    p = sbp.placement.abstract((16, 8), axis_names=("dp", "tp"), cluster="h100")
    shapes = jax.eval_shape(weights), jax.ShapeDtypeStruct((1024, 64), jnp.float32)
    plan = sbp.plan(train_step, *shapes, placement=p, donate_argnums=0)
    assert plan.optimality_gap == 0 and plan.step_seconds > 0 and plan.memory_per_device > 0
    assert "proven optimal" in str(plan)
    with pytest.raises(sbp.PlanError, match="abstract"):
        sbp.auto_parallel(train_step, plan=plan, donate_argnums=0).lower(*shapes)


def test_a_plan_is_data(tmp_path: Path) -> None:
    p = place(2, 4)
    plan = sbp.plan(train_step, weights(), X, placement=p, donate_argnums=0)
    plan.save(tmp_path / "plan.json")
    again = sbp.Plan.load(tmp_path / "plan.json")
    assert again.to_json() == plan.to_json()
    assert str(again) == str(plan)
    step = sbp.auto_parallel(train_step, plan=again, donate_argnums=0)
    _, loss = step(weights(), X)
    np.testing.assert_allclose(loss, loss_fn(weights(), X), rtol=1e-5)
    with pytest.raises(sbp.PlanError, match="does not know its function"):
        sbp.Plan.load(tmp_path / "plan.json").verify()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t[: len(t) // 2], "breaks off or is damaged"),
        (lambda t: json.dumps({**json.loads(t), "schema": 99}), "schema version 99; this version of sbp_jax reads 4"),
        (lambda t: json.dumps({k: v for k, v in json.loads(t).items() if k != "nodes"}), "incomplete or damaged"),
        (lambda t: "[]", "schema version None"),
    ],
)
def test_bad_plan_files(tmp_path: Path, damage, message: str) -> None:
    path = tmp_path / "plan.json"
    sbp.plan(train_step, weights(), X, placement=place(4), donate_argnums=0).save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(sbp.PlanError, match=message):
        sbp.Plan.load(path)


def test_a_missing_plan_file() -> None:
    with pytest.raises(sbp.PlanError, match="cannot read a plan"):
        sbp.Plan.load("/nowhere/plan.json")


def test_a_plan_for_another_function() -> None:
    plan = sbp.plan(train_step, weights(), X, placement=place(4), donate_argnums=0)
    other = sbp.auto_parallel(lambda w, x: (w, x.sum()), plan=plan, donate_argnums=0)
    with pytest.raises(sbp.PlanError, match="another function or other shapes"):
        other(weights(), X)


def test_verify_lists_what_is_not_the_plans() -> None:
    p = place(8)
    plan = sbp.plan(lambda x: x * 2, X, placement=p)

    def sneaky(x):
        return jax.lax.psum(x, "dp")

    f = jax.jit(jax.shard_map(sneaky, mesh=p.mesh, in_specs=jax.P("dp"), out_specs=jax.P()))
    with pytest.raises(sbp.PlanMismatch, match="added by XLA: all-reduce"):
        plan.verify(f.lower(X).compile())


def test_more_devices_than_exist() -> None:
    p = sbp.placement("cpu", np.arange(64).reshape(8, 8), axis_names=("dp", "tp"))
    with pytest.raises(sbp.PlacementError, match="only 8 cpu device"):
        sbp.auto_parallel(train_step, placement=p)(weights(), X)


@pytest.mark.parametrize("make", [jnp.sin, jnp.ones_like], ids=["computed", "constant"])
def test_one_value_pinned_in_several_ways(make) -> None:
    pins = ("S(0), B", None, "B, S(1)", "B, B")
    f = sbp.auto_parallel(lambda x: (make(x),) * 4, placement=place(2, 4), out_sbp=pins)
    for result, pin in zip(f(X), pins, strict=True):
        np.testing.assert_allclose(result, make(X), 1e-5)
        assert pin is None or str(sbp.from_sharding(result.sharding, 2)) == pin


def test_pins_are_obeyed() -> None:
    plan = sbp.plan(
        train_step, weights(), X, placement=place(2, 4), donate_argnums=0,
        in_sbp=({"a": "B, S(1)", "b": None}, (sbp.split(0), sbp.broadcast)),
    )  # fmt: skip
    ins, _ = plan.signatures()
    assert str(ins[0]["a"]) == "B, S(1)" and str(ins[1]) == "S(0), B"


def test_pins_on_an_axis_of_one_device() -> None:
    plan = sbp.plan(train_step, weights(), X, placement=place(1, 8), donate_argnums=0, in_sbp=(None, "S(0), S(1)"))
    ins, _ = plan.signatures()
    assert str(ins[1]) == "B, S(1)"


def test_pins_inside_the_function() -> None:
    p = place(2, 4)

    def f(x, w):
        return sbp.to_global(x @ w, "S(1), S(0)", placement=p).sum()

    w = np.ones((64, 16), np.float32)
    plan = sbp.plan(f, X, w, placement=p)
    made = {str(o) for _, outs in plan.strategies for o in outs}
    assert "S(1), S(0)" in made
    np.testing.assert_allclose(sbp.auto_parallel(f, placement=p)(X, w), f(X, w), rtol=1e-4)
    np.testing.assert_allclose(jax.grad(f)(X, w), jax.grad(lambda x, w: (x @ w).sum())(X, w), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(lambda x: sbp.to_global(x, "B, B"))(X), X)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"in_sbp": ("S(5), B", None)}, "in_sbp of 0/a: S\\(5\\).*rank 2"),
        ({"in_sbp": (None, "S(0), S(0)")}, "32 is not a multiple|not possible"),
        ({"in_sbp": ("S(0)", None)}, "1 component"),
        ({"in_sbp": ("P, B", None)}, "not possible"),
        ({"in_sbp": ({"a": "S(0), B", "b": None}, None), "out_sbp": ({"a": "B, S(0)", "b": None}, None)},
         "contradict each other.*in_sbp of 0/a.*out_sbp of 0/a"),
        ({"in_sbp": ({"c": "B, B"}, None)}, "does not have the structure"),
    ],
)  # fmt: skip
def test_bad_pins(pins, message: str) -> None:
    x = X if "32" not in message else np.ones((20, 64), np.float32)
    if "32" in message:
        message = "20 is not a multiple of 8"
    with pytest.raises(sbp.SbpError, match=message):
        sbp.plan(train_step, weights(), x, placement=place(2, 4), donate_argnums=0, **pins)


def test_a_memory_limit_changes_the_plan() -> None:
    def make(limit):
        config = sbp.AutoParallelConfig(memory_limit=limit, cluster="h100")
        return sbp.plan(train_step, weights(), X, placement=place(8), donate_argnums=0, config=config)

    free = make(None)
    tight = make(0.6 * free.memory_per_device)
    assert tight.memory_per_device <= 0.6 * free.memory_per_device
    assert tight.step_seconds >= free.step_seconds
    with pytest.raises(
        sbp.PlanError, match=r"no plan was found that fits.*the smallest that one does is (\d+) bytes"
    ) as e:
        make(100.0)
    smallest = float(str(e.value).split("does is ")[1].split(" bytes")[0])
    assert make(smallest).memory_per_device <= smallest


def test_the_devices_own_memory_is_a_limit_that_only_warns() -> None:
    config = sbp.AutoParallelConfig(cluster="v100")
    shapes = {
        "a": jax.ShapeDtypeStruct((2**18, 2**15), jnp.float32),
        "b": jax.ShapeDtypeStruct((2**15, 8), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((8, 2**18), jnp.float32)
    for devices, fits in ((8, True), (1, False)):
        where = sbp.placement.abstract((devices,))
        plan = sbp.plan(train_step, shapes, x, placement=where, donate_argnums=0, config=config)
        assert (plan.memory_per_device <= 32 * 2**30 * 0.9) is fits
        assert bool(plan.notes) is not fits and ("does not fit" in str(plan)) is not fits


def test_results_whose_structure_hangs_on_shapes() -> None:
    @sbp.auto_parallel(placement=place(2))
    def f(x):
        return (x, x) if len(x) > 4 else x

    for n in (4, 8, 4, 8):
        wanted = (n, n) if n > 4 else n
        assert jax.tree.map(len, f(np.ones(n, np.float32))) == wanted


def test_other_shapes_are_planned_anew_with_a_warning_after_the_third() -> None:
    f = sbp.auto_parallel(lambda x: x.sum(), placement=place(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 4, 6, 8):
            assert f(np.ones(n, np.float32)) == n
        assert f(np.ones(4, np.float32)) == 4
    with pytest.warns(UserWarning, match="5th set of argument shapes"):
        assert f(np.ones(10, np.float32)) == 10


def test_a_primitive_without_a_rule_is_whole_and_named() -> None:
    mystery = Primitive("mystery")
    mystery.def_abstract_eval(lambda x: x)

    def f(x):
        return mystery.bind(x).sum()

    plan = sbp.plan(f, np.ones((8, 8), np.float32), placement=place(2))
    assert [name for name, _ in plan.unruled] == ["mystery"]
    assert "test_function.py" in plan.unruled[0][1] and "no rule for mystery" in str(plan)


def test_a_sum_is_narrowed_before_its_reduction_only_with_leave() -> None:
    """x split along what is contracted: the product is partial, and half as many bytes move as bfloat16."""

    def f(x, w):
        return (x @ w).astype(jnp.bfloat16)

    args = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    pins = {"in_sbp": ("S(1)", "S(0)"), "out_sbp": "B", "placement": place(2)}
    firm = sbp.plan(f, *args, **pins)
    free = sbp.plan(f, *args, **pins, config=sbp.AutoParallelConfig(narrow_partial=True))
    assert {b.dtype for b in firm.boxings() if b.src.has_partial} == {"float32"}
    assert {b.dtype for b in free.boxings() if b.src.has_partial} == {"bfloat16"}
    assert free.bytes_on_wire < firm.bytes_on_wire


def test_what_is_printed_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x):
        jax.debug.print("sum {}", x.sum())
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    x = np.ones((8, 4), np.float32)
    y = sbp.auto_parallel(f, placement=place(2), in_sbp=("S(0)",))(x)
    jax.effects_barrier()
    np.testing.assert_allclose(y, np.sin(x), rtol=1e-6)
    assert capfd.readouterr().out.count("sum 32.0") == 1


def test_what_cannot_be_planned_says_so() -> None:
    def referenced(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return ref[...]

    def mapped(x):
        spec = jax.sharding.PartitionSpec(place(2).axis_names[0])
        return jax.shard_map(lambda v: v + 1, mesh=place(2).mesh, in_specs=spec, out_specs=spec)(x)

    x = np.ones((8, 4), np.float32)
    with pytest.raises(sbp.SbpError, match=r"test_function.py.*mutable reference.*x = x\.at"):
        sbp.plan(referenced, x, placement=place(2))
    with pytest.raises(sbp.SbpError, match=r"test_function.py.*a shard_map cannot be part.*register_rule"):
        sbp.plan(mapped, x, placement=place(2))


def test_the_mesh_is_chosen_too() -> None:
    for where, size in (("auto", 8), (4, 4)):
        step = sbp.auto_parallel(train_step, placement=where)
        plan = step.plan(weights(), X)
        assert plan.placement.size == size and not plan.placement.is_abstract
        assert any(note.startswith("mesh ") and "chosen of" in note for note in plan.notes)
        _, loss = step(weights(), X)
        np.testing.assert_allclose(loss, loss_fn(weights(), X), rtol=1e-5)
    config = sbp.AutoParallelConfig(cluster="h100")
    shapes = jax.eval_shape(weights), jax.ShapeDtypeStruct(X.shape, X.dtype)
    plan = sbp.plan(train_step, *shapes, placement=64, config=config)
    assert plan.placement.is_abstract and plan.placement.size == 64
    pinned = sbp.plan(train_step, *shapes, placement=64, config=config, in_sbp=(None, "S(0), B"))
    assert pinned.placement.ndim == 2
    with pytest.raises(sbp.PlanError, match=r"there are 8 cpu device.*cluster='h100'"):
        sbp.plan(train_step, *shapes, placement=64)
    with pytest.raises(sbp.PlanError, match="a number of devices, or 'auto'; got 'all'"):
        sbp.plan(train_step, *shapes, placement="all")


def test_a_constant_result_obeys_its_pin() -> None:
    f = sbp.auto_parallel(lambda x: (x, jnp.ones((8, 2))), placement=place(2), out_sbp=(None, "B"))
    _, ones = f(np.ones((8, 4), np.float32))
    np.testing.assert_array_equal(ones, np.ones((8, 2)))
    assert str(f.plan(np.ones((8, 4), np.float32)).outputs[1].signature) == "B"


def test_a_bad_call() -> None:
    with pytest.raises(sbp.PlanError, match="takes a function"):
        sbp.auto_parallel(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(sbp.PlanError, match=r"donate_argnums/donate_argnames \[4\]: train_step has the arguments w, x"):
        sbp.plan(train_step, weights(), X, placement=place(2), donate_argnums=4)
    with pytest.raises(sbp.SbpError, match="did you mean h100"):
        sbp.plan(train_step, weights(), X, placement=place(2), config=sbp.AutoParallelConfig(cluster="h10"))
    with pytest.raises(sbp.PlanError, match="solver 'magic' is not known"):
        sbp.AutoParallelConfig(solver="magic")
