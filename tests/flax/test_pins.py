"""Pin dictionaries: what keys match, which of them counts, what is refused and how that is said."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState

import sbp_jax as sbp
import sbp_jax.flax

ONE = sbp.placement("cpu", np.arange(4), axis_names=("tp",))
TWO = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))


def shape(*n: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(n, jnp.float32)


TREE = {
    "params": {
        "blocks": [{"mlp": {"kernel": shape(8, 16)}, "norm": {"scale": shape(8)}} for _ in range(2)],
        "head": {"kernel": shape(16, 10), "bias": shape(10)},
    }
}


def found(tree: Any, pins: Any = None, placement: sbp.Placement | None = TWO) -> dict[str, str]:
    """The pins by path, without those that are free."""
    made = sbp.flax.pins(tree, pins, placement)
    flat, _ = jax.tree_util.tree_flatten_with_path(made, is_leaf=lambda x: x is None or isinstance(x, sbp.Signature))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): str(s) for path, s in flat if s is not None}


MLP = ["params/blocks/0/mlp/kernel", "params/blocks/1/mlp/kernel"]
HEAD = "params/head/kernel"


@pytest.mark.parametrize(
    ("key", "matches"),
    [
        ("head/kernel", [HEAD]),
        ("params/head/kernel", [HEAD]),
        ("*/kernel", [HEAD]),
        ("he*d/k*", [HEAD]),
        ("blocks/1/mlp/kernel", MLP[1:]),
        ("blocks/*/mlp/kernel", MLP),
        ("blocks/**/kernel", MLP),
        ("**/kernel", [*MLP, HEAD]),
        ("**/mlp/**", MLP),
        ("**/**/head/kernel", [HEAD]),
    ],
)
def test_keys_match_whole_parts(key: str, matches: list[str]) -> None:
    assert found(TREE, {key: "B, S(0)"}) == dict.fromkeys(matches, "B, S(0)")


@pytest.mark.parametrize("keys", [["**/kernel", "blocks/*/mlp/kernel", "blocks/0/mlp/kernel"]])
def test_the_more_specific_key_counts_in_any_order(keys: list[str]) -> None:
    pins = dict(zip(keys, ("S(0), B", "B, S(1)", None), strict=True))
    for some in (pins, dict(reversed(pins.items()))):
        assert found(TREE, some) == {MLP[1]: "B, S(1)", HEAD: "S(0), B"}


@pytest.mark.parametrize(
    "pin", ["B, S(1)", ("B", "S(1)"), (sbp.broadcast, sbp.split(-1)), sbp.Signature.parse("B,S(1)"), jax.P(None, "tp")]
)
def test_what_a_pin_may_be(pin: Any) -> None:
    assert found(TREE, {"blocks/*/mlp/kernel": pin}) == dict.fromkeys(MLP, "B, S(1)")


def test_a_lone_component_is_for_a_mesh_of_one_axis() -> None:
    assert found(TREE, {"head/kernel": sbp.split(0)}, ONE) == {HEAD: "S(0)"}


@pytest.mark.parametrize(
    ("pins", "error", "message"),
    [
        ({"heads/kernel": "B, B", "norm": "B, B"}, sbp.PlanError,
         r"sbp: no variable matches 'heads/kernel' \(did you mean head/kernel.*\); 'norm'.*There are blocks/0/mlp"),
        ({"*/0/**": "B, B", "blocks/*/mlp/kernel": "S(0), B", "blocks/*/ml*/kernel*": "B, S(1)"}, sbp.PlanError,
         None),
        ({"*/kernel": "B, S(0)", "head/*ernel": "B, B"}, None, None),
        ({"head/kern*l": "B, S(0)", "he*d/kernel": "B, B"}, sbp.PlanError,
         r"keys 'head/kern\*l' and 'he\*d/kernel' both match params/head/kernel and neither is more specific: "
         r"\(B, S\(0\)\) or \(B, B\)"),
        ({"head/kernel": sbp.split(1)}, sbp.SignatureError,
         r"sbp\['head/kernel'\] for params/head/kernel of shape \(16, 10\) on cpu\[dp=2, tp=4\]: .*1 component\(s\), "
         r"but the placement has 2"),
        ({"head/kernel": "B, S(2)"}, sbp.SignatureError, r"params/head/kernel of shape \(16, 10\).*S\(2\).*rank 2"),
        ({"head/kernel": "B, S(1)"}, sbp.SignatureError,
         r"params/head/kernel of shape \(16, 10\) on .*into 4 pieces, but 10 is not a multiple of 4; .*S\(0\)"),
        ({"head/kernel": "P, B"}, sbp.SignatureError, "is partial; a variable is whole or split"),
        ({"head/kernel": jax.P("model")}, sbp.SignatureError, r"names axes \['model'\]; the mesh has \('dp', 'tp'\)"),
        ({3: "B, B"}, sbp.PlanError, "keys are variable paths such as 'head/kernel' .*got 3"),
        ([("head/kernel", "B, B")], sbp.PlanError, "a dictionary of signatures by variable path, got list"),
    ],
)  # fmt: skip
def test_what_is_refused(pins: Any, error: Any, message: str | None) -> None:
    if error is None or message is None:
        found(TREE, pins)
        return
    with pytest.raises(error, match=message):
        found(TREE, pins)


class Net(nn.Module):
    """One layer annotated by mesh axes, one by logical names, one not at all."""

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        x = nn.Dense(8, kernel_init=nn.with_partitioning(init, (None, "tp")), name="a")(x)
        x = nn.Dense(8, kernel_init=nn.with_logical_partitioning(init, ("in", "out")), name="b")(x)
        return nn.Dense(8, name="head")(x)


def test_a_train_states_pins_are_its_boxes_and_the_dictionary() -> None:
    variables = jax.eval_shape(Net().init, jax.random.key(0), shape(4, 8))
    assert found(variables) == {"params/a/kernel": "B, S(1)"}
    state = jax.eval_shape(
        lambda v: TrainState.create(apply_fn=Net().apply, params=v["params"], tx=optax.adam(0.1)), variables
    )
    with nn.logical_axis_rules([("in", "tp"), ("out", None)]):
        pins = found(state, {"head/kernel": "S(0), B", "opt_state/0/nu/a/kernel": "S(0), B"})
    wanted = {"a": "B, S(1)", "b": "B, S(0)", "head": "S(0), B"}
    for start in ("params", "opt_state/0/mu", "opt_state/0/nu"):
        for layer, signature in wanted.items():
            is_named = start.endswith("nu") and layer == "a"
            assert pins.pop(f"{start}/{layer}/kernel") == ("S(0), B" if is_named else signature)
    assert not pins


def test_a_moment_of_another_shape_and_a_parameter_of_a_shorter_path_are_left_alone() -> None:
    params = {"kernel": shape(8, 8), "head": {"kernel": shape(8, 8)}, "b": {"kernel": shape(8, 4)}}
    state = {"params": params, "opt_state": {"mu": params, "row": {"kernel": shape(8)}}}
    assert found(state, {"params/kernel": "S(0), B"}) == {"params/kernel": "S(0), B", "opt_state/mu/kernel": "S(0), B"}


def test_nnx_states_and_shapes_have_pins_too() -> None:
    model = nnx.eval_shape(lambda: nnx.Linear(8, 16, rngs=nnx.Rngs(0)))
    for tree in (model, nnx.state(model)):
        assert found(tree, {"kernel": "B, S(1)"}) == {"kernel": "B, S(1)"}
    assert sbp.flax.pins(model, {"kernel": "whatever"}, None)["kernel"] == "whatever"
