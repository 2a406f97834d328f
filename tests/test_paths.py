"""Names of values: shortened, folded into ranges, matched; and what reports print is accepted wherever names are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sbp_jax as sbp
import zoo
from sbp_jax.paths import fold, fold_layers, matcher, plain, spellings
from sbp_jax.report.layers import rows
from sbp_jax.report.summary import argument_groups

WHERE = sbp.placement.abstract((2,), axis_names=("tp",), cluster="h100")


def test_numbers_of_parts_are_ranges() -> None:
    names = [f"0/blocks/{k}/w" for k in range(12) if k != 3]
    assert fold(names) == {"0/blocks/0..2,4..11/w": names}
    both = [f"s/{a}/b/{b}" for a in range(2) for b in range(3)]
    assert fold([*both, "s/7/b/9"]) == {"s/0..1/b/0..2": both, "s/7/b/9": ["s/7/b/9"]}
    assert fold_layers(["Dense_0", "Dense_1", "head"]) == {"Dense_0..1": ["Dense_0", "Dense_1"], "head": ["head"]}


@pytest.mark.parametrize(
    "names", [["w1", "w2"], ["0/w_1", "0/w_2"], ["0/w", "1/w"], ["conv2d"], ["0/a*b/1"], ["0/b/01"]]
)
def test_numbers_in_names_stay(names: list[str]) -> None:
    assert list(fold(names)) == names


@pytest.mark.parametrize(
    ("key", "path", "is_meant"),
    [
        ("blocks/0..11/w", "blocks/3/w", True),
        ("blocks/0..2/w", "blocks/3/w", False),
        ("blocks/0,2..4/w", "blocks/3/w", True),
        ("Dense_0..2/kernel", "Dense_1/kernel", True),
        ("layer0..11/kernel", "layer10/kernel", True),
        ("layer0..9/kernel", "layer10/kernel", False),
        ("w1/kernel", "w10/kernel", False),
        ("blocks/*/w", "blocks/3/w", True),
        ("blocks/*", "blocks/3/w", False),
        ("**/w", "blocks/3/w", True),
        ("a,b/w", "a,b/w", True),
    ],
)
def test_keys(key: str, path: str, is_meant: bool) -> None:
    assert matcher(key)(path) is is_meant


def test_what_is_left_out() -> None:
    assert spellings("0/params/blocks/0/w") == ("0/params/blocks/0/w", "params/blocks/0/w", "blocks/0/w")
    assert plain(["0/head/kernel/value", "0/head/bias/value"]) == ["0/head/kernel", "0/head/bias"]
    assert plain(["0/attention/key", "0/attention/value"]) == ["0/attention/key", "0/attention/value"]


def sgd(loss: Any) -> Any:
    def step(params: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    return step


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def planned(loss: Any, params: Any) -> sbp.Plan:
    return sbp.plan(sgd(loss), params, shape(64, 128), placement=WHERE, donate_argnums=0)


def layer_names(plan: sbp.Plan) -> list[str]:
    return [r.name for r in rows(plan) if r.parameters]


def test_names_with_digits_are_rows_of_their_own() -> None:
    plan = planned(
        lambda p, x: jnp.sum(jnp.tanh(x @ p["w1"]) @ p["w2"]), {"w1": shape(128, 128), "w2": shape(128, 128)}
    )
    assert layer_names(plan) == ["w1", "w2"]
    assert "w*" not in str(plan) and "params/w1" in str(plan) and "params/w2" in str(plan)


def test_lists_of_weights_have_their_paths() -> None:
    """As stax and plain JAX tutorials keep them: a list of (weight, bias), the activations between them empty."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for layer in params:
            x = jnp.tanh(x @ layer[0] + layer[1]) if layer else x
        return jnp.sum(x)

    plan = planned(loss, [(shape(128, 256), shape(256)), (), (shape(256, 8), shape(8))])
    assert layer_names(plan) == ["params/0", "params/2"]
    for name in ("params/0", "params/0..2", "params/2/1", "0/0", "0/2", "0/2/1", "0/0..2"):
        assert plan.explain(name).items


def attention(p: Any, x: jax.Array) -> jax.Array:
    q, k, v = x @ p["query"], x @ p["key"], x @ p["value"]
    return x + jax.nn.softmax(q @ k.T) @ v


def test_modules_of_modules_and_blocks_are_explained() -> None:
    """Any folder of the user's: a block, a module in it, both for all blocks."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for block in params["params"]["blocks"]:
            x = attention(block["attention"], x)
            x = x + jnp.tanh(x @ block["mlp"]["up"]["w"]) @ block["mlp"]["down"]["w"]
        return jnp.sum(x)

    block = {
        "attention": {name: shape(128, 128) for name in ("query", "key", "value")},
        "mlp": {"up": {"w": shape(128, 512)}, "down": {"w": shape(512, 128)}},
    }
    plan = planned(loss, {"params": {"blocks": [block] * 4}})
    assert {"blocks/0..3/mlp/up", "blocks/0..3/attention"} <= set(layer_names(plan))
    up = {x.name for x in plan.explain("blocks/3/mlp/up").items}
    for name in ("blocks/3/mlp", "blocks/3", "blocks/*", "blocks/0..3", "blocks/1..2/mlp", "params/blocks/3", 
                 "0/params", "0/params/blocks/3/mlp", "blocks/3/attention", "blocks"):  # fmt: skip
        found = plan.explain(name)
        assert found.kind == "layer" and found.items, name
        assert "attention" in name or not up.isdisjoint({x.name for x in found.items}) or found.left_out, name
    assert plan.explain("blocks/3/attention/value").kind == "argument"
    assert plan.explain("blocks/0..3/attention/value").kind == "argument"
    with pytest.raises(sbp.PlanError, match=r"nothing in the plan .* is called 'blocks/4'"):
        plan.explain("blocks/4")


@pytest.mark.parametrize("model", ["gpt", "gpt_nnx", "lstm", "resnet"])
def test_what_a_plan_prints_is_understood(model: str) -> None:
    case = zoo.build(model)
    config = sbp.AutoParallelConfig(solver="greedy")
    plan = sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=WHERE, donate_argnums=0, config=config)
    for row in rows(plan):
        assert plan.explain(row.name).kind in ("layer", "argument"), row.name
        for leaf in row.parameters:
            assert plan.explain(leaf.path).kind == "argument"
    for name, _, count in argument_groups(plan):
        assert not name.endswith("kernel/value") and "*" not in name
        found = plan.explain(name)
        assert found.kind in ("argument", "layer") and count, name


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(3)])
        self.head = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = jnp.tanh(block(x))
        return self.head(x)


def test_pins_take_what_plans_print_and_the_other_way_round() -> None:
    where = sbp.placement("cpu", ranks=np.arange(2), axis_names=("tp",))
    model = Net(nnx.Rngs(0))
    x = np.ones((4, 16), np.float32)

    def run(model: Net, x: Any) -> jax.Array:
        return model(x)

    plan = sbp.flax.jit(run, placement=where).plan(model, x)
    printed = [name for name, _, _ in argument_groups(plan) if name.endswith("kernel")]
    raw = [leaf.path for leaf in plan.inputs if "kernel" in leaf.path]
    assert "model/blocks/0..2/kernel" in printed, printed
    for key in (*printed, *raw, "head/kernel", "model/head/kernel", "head/kernel/value", "blocks/0..2/kernel"):
        pinned = sbp.flax.jit(run, placement=where, sbp={key: "S(0)"}).plan(model, x)
        signatures = [str(leaf.signature) for leaf in pinned.inputs if "kernel" in leaf.path]
        assert "S(0)" in signatures, key
        assert pinned.explain(key).kind == "argument"
    with pytest.raises(sbp.PlanError, match=r"no variable matches 'blocks/3\.\.4/kernel'"):
        sbp.flax.jit(run, placement=where, sbp={"blocks/3..4/kernel": "S(0)"}).plan(model, x)


def test_pins_of_a_tree_take_what_its_plan_prints() -> None:
    tree = {"params": {"blocks": [{"w": shape(8, 8)} for _ in range(3)], "head": {"w": shape(8, 8)}}}
    found = sbp.flax.pins(tree, {"0/params/blocks/0..1/w": "S(0)", "0/params/head/w": "S(1)"})
    assert found["params"]["blocks"] == [{"w": "S(0)"}, {"w": "S(0)"}, {"w": None}]
    assert found["params"]["head"]["w"] == "S(1)"
