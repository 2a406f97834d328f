"""``sbp.flax.jit`` against ``nnx.jit`` on one device: results, and the state of every object after several steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import sbp_jax as sbp
import sbp_jax.flax

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def place(*shape: int) -> sbp.Placement:
    size = int(np.prod(shape))
    return sbp.placement("cpu", np.arange(size).reshape(shape), axis_names=("dp", "tp", "pp")[: len(shape)])


class Tiny(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.a, self.b = nnx.Linear(16, 8, rngs=rngs), nnx.Linear(8, 16, rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.a, self.b = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)

    def __call__(self, x):
        return self.b(self.dropout(nnx.relu(self.norm(self.a(x)))))


class Stack(nnx.Module):
    """Layers made by vmap, run by scan, each made again in the backward pass."""

    def __init__(self, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return nnx.Linear(16, 16, rngs=rngs)

        self.layers = make(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def run(layer, x):
            return nnx.remat(lambda layer, x: jnp.tanh(layer(x)))(layer, x)

        return run(self.layers, x)


def train(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def same(ours: Any, theirs: Any) -> None:
    """All arrays of two trees of objects are equal."""
    found, _ = jax.tree_util.tree_flatten_with_path(sbp_jax.flax.variables.pure(ours))
    wanted = jax.tree.leaves(sbp_jax.flax.variables.pure(theirs))
    assert len(found) == len(wanted)
    for (path, a), b in zip(found, wanted, strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5, err_msg=jax.tree_util.keystr(path))


def in_optax(tx: optax.GradientTransformation, make: Any = Tiny):
    def fresh():
        model = make(nnx.Rngs(0))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    return fresh


def decay_matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


CASES = {
    "state": in_optax(optax.sgd(1e-2, momentum=0.9), Net),
    "layers": in_optax(optax.adam(1e-2), Stack),
    "optax": in_optax(
        optax.MultiSteps(
            optax.chain(
                optax.clip_by_global_norm(1.0), optax.masked(optax.add_decayed_weights(0.1), decay_matrices),
                optax.adam(1e-2),
            ), 2,
        ).gradient_transformation()
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_training_is_as_on_one_device(case: str) -> None:
    ours, alone = CASES[case](), CASES[case]()
    step, reference = sbp.flax.jit(train, placement=place(2, 2) if case == "state" else place(2)), nnx.jit(train)
    for _ in range(3):
        np.testing.assert_allclose(step(*ours, X), reference(*alone, X), rtol=1e-4)
        same(ours, alone)


def test_metrics_rngs_keywords_and_results() -> None:
    """Metrics and random streams are updated in place; what is returned may be arrays, states or the objects."""

    def step(model, metrics, batch, *, rngs):
        y = model(batch["x"] + jax.random.normal(rngs.noise(), batch["x"].shape))
        metrics.update(loss=(y**2).mean(), logits=y, labels=batch["y"])
        return metrics.compute(), model, nnx.state(model, nnx.Param), None

    def fresh():
        metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
        return Tiny(nnx.Rngs(0)), metrics, nnx.Rngs(noise=3)

    (model, metrics, rngs), alone = fresh(), fresh()
    batch = {"x": X, "y": np.arange(8)}
    ours, reference = sbp.flax.jit(step, placement=place(2)), nnx.jit(step)
    for _ in range(2):
        values, returned, state, nothing = ours(model, metrics, batch=batch, rngs=rngs)
        wanted = reference(alone[0], alone[1], batch=batch, rngs=alone[2])
        same((values, state), (wanted[0], wanted[2]))
        same((model, metrics, rngs), alone)
        assert returned is model and nothing is None
    metrics.reset()
    assert float(metrics.compute()["loss"]) != float(values["loss"])


def test_several_models_pinned_by_the_arguments_name() -> None:
    def step(g, d, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda g, d: (d(g(x)) ** 2).mean())(g, d)
        optimizer.update(g, grads)
        return loss

    def fresh():
        g, d = Tiny(nnx.Rngs(0)), Tiny(nnx.Rngs(1))
        return g, d, nnx.Optimizer(g, optax.adam(1e-2), wrt=nnx.Param)

    pins = {"g/a/kernel": "B, S(0)", "*/b/kernel": ("B", "S(1)"), "d/b/kernel": jax.P("tp"), "x": "S(0), B"}
    ours, alone = fresh(), fresh()
    parallel, reference = sbp.flax.jit(step, placement=place(2, 2), sbp=pins), nnx.jit(step)
    for _ in range(2):
        np.testing.assert_allclose(parallel(*ours, X), reference(*alone, X), rtol=1e-4)
    same(ours, alone)
    planned = {leaf.path: str(leaf.signature) for leaf in parallel.plan(*ours, X).inputs}
    assert planned["0/g/a/kernel/value"] == "B, S(0)" and planned["0/g/b/kernel/value"] == "B, S(1)"
    assert planned["0/d/b/kernel/value"] == "B, S(0)" and planned["1/x"] == "S(0), B"
    found = {name: str(s) for name, s in sbp.flax.signatures(ours[0]).items()}
    assert found["a/kernel"] == "B, S(0)" and found["b/kernel"] == "B, S(1)"


def forward(model, x):
    return model(x).sum()


def test_the_compiled_step_moves_what_the_plan_says() -> None:
    step = sbp.flax.jit(train, placement=place(2))
    assert step.plan(*in_optax(optax.sgd(1e-2))(), X).verify().exact


def test_moments_follow_their_parameters_unless_zero_says_where_they_lie() -> None:
    model, optimizer = in_optax(optax.adam(1e-2))()

    def moments(config=None) -> set[str]:
        step = sbp.flax.jit(train, placement=place(2), sbp={"b/kernel": sbp.broadcast}, config=config)
        inputs = step.plan(model, optimizer, X).inputs
        assert [str(x.signature) for x in inputs if x.path == "0/model/b/kernel/value"] == ["B"]
        return {str(x.signature) for x in inputs if "opt_state" in x.path and x.path.endswith("b/kernel/value")}

    assert moments() == {"B"}
    assert moments(sbp.AutoParallelConfig(zero_stage=1)) & {"S(0)", "S(1)"}


def test_static_arguments_are_compared_by_type_and_value() -> None:
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    scaled = sbp.flax.jit(lambda model, x, by: x * by, placement=place(2), static_argnames="by")
    x = np.ones(8, np.int32)
    assert [scaled(model, x, by).dtype for by in (2, 2.0, True, 1)] == [np.int32, np.float32, np.int32, np.int32]


def test_static_arguments_methods_and_rest_arguments() -> None:
    class Trainer(nnx.Module):
        def __init__(self):
            self.model = Tiny(nnx.Rngs(0))

        @sbp.flax.jit(placement=place(2), static_argnames="mode", static_argnums=2)
        def run(self, x, power, *rest, mode="plain", **more):
            y = self.model(x) ** power if mode == "model" else x**power
            return y.sum() + sum(r.sum() for r in rest) + more.get("bias", 0.0)

    t = Trainer()
    np.testing.assert_allclose(t.run(X, 2), (X**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(t.run(X, 2, X, X, bias=3.0), (X**2).sum() + 2 * X.sum() + 3, rtol=1e-4)
    wanted = (t.model(X) ** 3).sum()
    np.testing.assert_allclose(t.run(X, power=3, mode="model"), wanted, rtol=1e-4)


def test_objects_that_share_variables_or_memory() -> None:
    """The same model twice, an optimizer that holds its model, a clone whose arrays are its model's still."""

    def step(a, b, optimizer, target, x):
        a.a.bias[...] += 1.0
        train(b, optimizer, x)
        mix = jax.tree.map(lambda p, q: 0.9 * p + 0.1 * q, nnx.state(target), nnx.state(a))
        nnx.update(target, mix)
        return a(x).sum()

    class Both(nnx.Optimizer):
        def __init__(self, model, tx):
            super().__init__(model, tx, wrt=nnx.Param)
            self.mine = model

    def fresh():
        model = Tiny(nnx.Rngs(0))
        return model, model, Both(model, optax.sgd(1e-2)), nnx.clone(model)

    ours, alone = fresh(), fresh()
    parallel, reference = sbp.flax.jit(step, placement=place(2)), nnx.jit(step)
    for _ in range(2):
        np.testing.assert_allclose(parallel(*ours, X), reference(*alone, X), rtol=1e-4)
    same(ours, alone)
    assert ours[2].mine is ours[0]


class Modes(Tiny):
    def __init__(self, rngs: nnx.Rngs):
        super().__init__(rngs)
        self.count, self.table = nnx.Variable(0), nnx.Variable(np.ones(4))  # become arrays of JAX's own types
        self.dropout = nnx.Dropout(0.0, rngs=rngs)


def test_changed_objects_are_planned_anew_and_the_warning_says_what_changed() -> None:
    step = sbp.flax.jit(forward, placement=place(2))
    model: Any = Modes(nnx.Rngs(0))
    step(model, X)
    step(model, X)
    model.eval()
    with pytest.warns(UserWarning, match=r"forward is planned again.*model/dropout/deterministic was False, is True"):
        np.testing.assert_allclose(step(model, X), forward(model, X), rtol=1e-4)
    model.train()
    step(model, X)  # planned before: no warning
    model.b = nnx.Linear(8, 4, rngs=nnx.Rngs(1))
    with pytest.warns(UserWarning, match=r"model/b/bias was float32\[16\], is float32\[4\]"):
        step.plan(model, X)
    model.a.bias = nnx.Param(jnp.ones(1))
    with pytest.warns(UserWarning, match=r"model/a/bias was float32\[8\], is float32\[1\]") as told:
        step.plan(model, X)
    assert told[0].filename == __file__
    model.extra = nnx.Param(jnp.ones(3))
    with pytest.warns(UserWarning, match=r"model/extra is new \(float32\[3\]\)"):
        step.plan(model, X)
    del model.extra
    model.b = nnx.Linear(8, 4, use_bias=False, rngs=nnx.Rngs(1))
    with pytest.warns(UserWarning, match=r"model/b/bias is gone \(float32\[4\]\); model/extra is gone"):
        step.plan(nnx.eval_shape(lambda: model), X)


def test_a_step_may_change_the_structure() -> None:
    @sbp.flax.jit(placement=place(2))
    def step(model, x):
        model.seen = nnx.Variable(x.sum(0))
        model.flag = True
        return Tiny(nnx.Rngs(0)), x

    model: Any = Tiny(nnx.Rngs(0))
    made, _ = step(model, X)
    np.testing.assert_allclose(model.seen[...], X.sum(0), rtol=1e-4)
    assert model.flag is True and isinstance(made, Tiny)
    same(made, Tiny(nnx.Rngs(0)))


def test_a_plan_given_runs_or_names_what_differs() -> None:
    model = Tiny(nnx.Rngs(0))
    plan = sbp.flax.jit(forward, placement=place(2)).plan(nnx.eval_shape(lambda: Tiny(nnx.Rngs(0))), X)
    step = sbp.flax.jit(forward, plan=plan)
    np.testing.assert_allclose(step(model, X), forward(Tiny(nnx.Rngs(0)), X), rtol=1e-4)
    model.b = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    with pytest.raises(sbp.PlanError, match=r"0/model/b/kernel/value was float32\[8, 16\], is float32\[8, 4\]"):
        step(model, X)
    with pytest.raises(sbp.PlanError, match="plan= or sbp="):
        sbp.flax.jit(forward, plan=plan, sbp={"a/kernel": sbp.broadcast})


def test_the_chosen_mesh_stays() -> None:
    step = sbp.flax.jit(forward, placement=4)
    model = Modes(nnx.Rngs(0))
    step(model, X)
    first = step.plan(model, X).placement
    model.eval()
    with pytest.warns(UserWarning, match="planned again"):
        assert step.plan(model, X).placement == first and first.size == 4


def test_lower_and_bare() -> None:
    step, model = sbp.flax.jit(forward, placement=place(2)), Tiny(nnx.Rngs(0))
    with pytest.raises(sbp.PlanError, match="forward has not run yet"):
        step.bare()
    assert "HloModule" in step.lower(model, X).compile().as_text()
    step(model, X)
    jitted, last = step.bare()
    state, result, graph = jitted(nnx.state({"model": model}), {"x": X}, last)
    np.testing.assert_allclose(result, forward(nnx.merge(graph, state)["model"], X), rtol=1e-4)


def test_annotated_variables_are_pinned() -> None:
    """``nnx.with_partitioning`` is obeyed, by the optimizer's moments too, and the step computes the same."""
    by_column = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "tp"))
    with jax.set_mesh(jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        model = nnx.Sequential(nnx.Linear(16, 32, kernel_init=by_column, rngs=nnx.Rngs(0)))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    parallel = sbp.flax.jit(train, placement=place(2, 4))
    kernels = [leaf for leaf in parallel.plan(model, optimizer, X).inputs if leaf.shape == (16, 32)]
    assert len(kernels) == 3 and {str(leaf.signature) for leaf in kernels} == {"B, S(1)"}
    expected = nnx.jit(train)(*nnx.clone((model, optimizer)), X)
    np.testing.assert_allclose(parallel(model, optimizer, X), expected, rtol=1e-5)


def test_a_variable_annotated_with_an_axis_that_is_not_there() -> None:
    by_row = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("model", None))
    with jax.set_mesh(jax.make_mesh((1, 8), ("dp", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        model = nnx.Linear(16, 32, kernel_init=by_row, rngs=nnx.Rngs(0))
    with pytest.raises(sbp.SignatureError, match=r"kernel.*names axes \['model'\]; the mesh has \('dp', 'tp'\)"):
        sbp.flax.jit(forward, placement=place(2, 4)).plan(model, X)


def test_inside_another_trace_it_is_the_function_itself() -> None:
    step, model = sbp.flax.jit(forward, placement=place(2)), Tiny(nnx.Rngs(0))
    np.testing.assert_allclose(nnx.jit(lambda m, x: step(m, x) * 2)(model, X), 2 * forward(model, X), rtol=1e-4)


def test_bad_calls() -> None:
    model, p = Tiny(nnx.Rngs(0)), place(2)
    with pytest.raises(sbp.PlanError, match=r"takes a plain function .*got Tiny; write sbp.flax.jit"):
        sbp.flax.jit(model, placement=p)
    with pytest.raises(sbp.PlanError, match=r"forward.plan takes the arguments of a call, \(model, x\)"):
        sbp.flax.jit(forward, placement=p).plan()
    with pytest.raises(TypeError, match=r"forward\(\) missing a required argument: 'x'"):
        sbp.flax.jit(forward, placement=p)(model)
    with pytest.raises(sbp.PlanError, match=r"argument x of forward is a str: .*static_argnames='x'"):
        sbp.flax.jit(forward, placement=p)(model, "train")
    with pytest.raises(sbp.PlanError, match=r"\['mode'\]: forward has the arguments model, x"):
        sbp.flax.jit(forward, placement=p, static_argnames="mode")
    with pytest.raises(sbp.PlanError, match="static argument 'x' of forward cannot be hashed: ndarray"):
        sbp.flax.jit(forward, placement=p, static_argnums=1)(model, X)
    with pytest.raises(sbp.PlanError, match=r"sbp of forward: no variable matches 'a/kernle' \(did you mean a/kernel"):
        sbp.flax.jit(forward, placement=p, sbp={"a/kernle": sbp.split(0)})(model, X)
    with pytest.raises(sbp.PlanError, match="a number of devices, or 'auto'; got 'all'"):
        sbp.flax.jit(forward, placement="all")(model, X)


class Gated(nnx.Module):
    """Two products of one operand, which a rewriting makes one."""

    def __init__(self, rngs: nnx.Rngs):
        self.a, self.b = (nnx.Linear(16, 8, use_bias=False, rngs=rngs) for _ in range(2))
        self.out = nnx.Linear(8, 16, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.a(x)) * self.b(x))


def test_a_rewritten_step_changes_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO-3 beside it; every program but the one given counts as cheaper."""
    from sbp_jax.planner import rewrite

    monkeypatch.setattr(rewrite, "_SAVED", -np.inf)
    monkeypatch.setattr(
        rewrite, "_greedy_seconds", lambda program, request: 1.0 + sum(x.name == "dot_general" for x in program.nodes)
    )

    def step(model, optimizer, x):
        value, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return value

    models = [Gated(nnx.Rngs(0)) for _ in range(2)]
    optimizers = [nnx.Optimizer(m, optax.sgd(0.1), wrt=nnx.Param) for m in models]
    config = sbp.AutoParallelConfig(rewrite="taso", rewrite_options={"steps": 4}, zero_stage=3, effort="quick")
    ours, alone = sbp.flax.jit(step, placement=place(2, 4), config=config), nnx.jit(step)
    for _ in range(2):
        np.testing.assert_allclose(ours(models[0], optimizers[0], X), alone(models[1], optimizers[1], X), rtol=1e-5)
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    plan = ours.plan(models[0], optimizers[0], X)
    assert plan.rewritten is not None and any("parallel products" in note for note in plan.notes)
