"""What arguments are, by structure alone, against what their names say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sbp_jax.calls import capture
from sbp_jax.planner.graph.clusters import factor_maps
from sbp_jax.planner.graph.roles import Roles, roles
from zoo import gpt, gpt_nnx, lstm, mlp, resnet


def find(step, *args, donate=(0,)) -> tuple[Roles, list]:
    program, _, _ = capture.trace(step, args, {}, (), donate)
    return roles(program, factor_maps(program)), [op.outs[0] for op in program.input_ops]


def truth(path: str, value) -> str:
    """The role that a leaf of the zoo has by its path."""
    if not value.shape or "rng" in path.lower() or not jnp.issubdtype(value.dtype, jnp.inexact):
        return "data" if path.startswith("1/") and value.shape else "buffer"
    if path.startswith("1/"):
        return "data"
    if "opt_state" in path or path.startswith("0/optimizer"):
        return "state"
    if path.endswith(("mean", "var", "mean/value", "var/value")):
        return "buffer"
    return "parameter"


CASES = {
    "mlp": lambda: mlp.build("tiny"),
    "gpt": lambda: gpt.build("tiny"),
    "gpt untied, fused": lambda: gpt.build("tiny", tied=False, fused_qkv=True, dropout=0.0),
    "gpt scanned": lambda: gpt.build("tiny", scan_layers=True),
    "gpt accumulating": lambda: gpt.build("tiny", grad_accumulation=4),
    "gpt remat": lambda: gpt.build("tiny", remat=True, scan_layers=True, grad_accumulation=2),
    "gpt_nnx": lambda: gpt_nnx.build("tiny"),
    "resnet": lambda: resnet.build("tiny"),
    "lstm": lambda: lstm.build("tiny"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_zoo(name: str) -> None:
    case = CASES[name]()
    found, values = find(case.step, jax.eval_shape(case.init), case.batch(0))
    role = dict.fromkeys(found.parameters, "parameter") | dict.fromkeys(found.states, "state")
    role |= dict.fromkeys(found.data, "data") | dict.fromkeys(found.buffers, "buffer")
    wrong = {v.name: role.get(i) for i, v in enumerate(values) if role.get(i) != truth(v.name, v)}
    assert not wrong
    assert {g.parameter for g in found.gradients} == set(found.parameters)
    assert all(g.value.shape == values[g.parameter].shape for g in found.gradients)
    # Moments belong to the parameter whose path they end in.
    for state, parameter in found.states.items():
        assert parameter is not None and values[state].shape == values[parameter].shape
        if name != "resnet" and name != "gpt_nnx":
            assert values[state].name.endswith(values[parameter].name.removeprefix("0/params/"))


def _loss(w, x):
    return jnp.mean((jnp.tanh(x @ w["a"] + w["b"]) @ w["c"]) ** 2)


W = {"a": np.zeros((8, 16), np.float32), "b": np.zeros(16, np.float32), "c": np.zeros((16, 4), np.float32)}
X = np.zeros((32, 8), np.float32)
CHAINS = {
    "lamb": optax.lamb(1e-3),
    "lars": optax.lars(1e-3),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "lion": optax.lion(1e-3),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=4),
    "averaging": optax.chain(optax.sgd(0.1, momentum=0.9), optax.ema(0.9)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_optimizers_that_take_norms(name: str) -> None:
    tx = CHAINS[name]

    def step(w, state, x):
        updates, state = tx.update(jax.grad(_loss)(w, x), state, w)
        return optax.apply_updates(w, updates), state

    found, values = find(step, W, jax.eval_shape(tx.init, W), X, donate=(0, 1))
    assert {values[i].name for i in found.parameters} == {"0/a", "0/b", "0/c"}
    floats = {i for i, v in enumerate(values) if v.name.startswith("1/") and v.shape and v.shape != (1,)}
    assert floats <= set(found.states)
    for state, parameter in found.states.items():
        assert parameter is None or values[state].shape == values[parameter].shape


def test_averaged_weights_are_state_of_their_parameter() -> None:
    def step(state, x):
        new = jax.tree.map(lambda p, d: p - 0.1 * d, state["w"], jax.grad(_loss)(state["w"], x))
        return {"w": new, "ema": jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, state["ema"], new)}

    found, values = find(step, {"w": W, "ema": W}, X)
    assert {values[s].name: values[p or 0].name for s, p in found.states.items()} == {
        f"0/ema/{k}": f"0/w/{k}" for k in W
    }


def test_several_steps_in_a_loop() -> None:
    def step(w, xs):
        def one(w, x):
            loss, d = jax.value_and_grad(_loss)(w, x)
            return jax.tree.map(lambda p, d: p - 0.1 * d, w, d), loss

        return jax.lax.scan(one, w, xs)

    found, values = find(step, W, np.zeros((3, 32, 8), np.float32))
    assert {values[i].name for i in found.parameters} == {"0/a", "0/b", "0/c"}
    assert {g.value.times for g in found.gradients} == {3.0}


def test_nothing_donated_nothing_known() -> None:
    found, _ = find(lambda w, x: _loss(w, x), W, X, donate=())
    assert not found.known and found.data == (0, 1, 2, 3)
