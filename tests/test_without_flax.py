"""Functions of arrays are planned and run where neither Flax nor Optax is installed."""

import os
import subprocess
import sys

from sbp_jax.cli import facts

PROGRAM = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flax", "optax", "orbax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())

import jax
jax.config.update("jax_num_cpu_devices", 8)
import jax.numpy as jnp
import numpy as np
import sbp_jax as sbp

def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2))(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), loss

w = {"a": jnp.full((64, 128), 0.01), "b": jnp.full((128, 64), 0.01)}
x = jnp.ones((32, 64))
where = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
plan = sbp.plan(step, w, x, placement=where)
np.testing.assert_allclose(sbp.auto_parallel(step, plan=plan)(w, x)[1], step(w, x)[1], rtol=1e-5)
assert sbp.simulate(plan) and str(plan)
t = sbp.ones((8, 8), placement=where, sbp=(sbp.split(0), sbp.broadcast))
assert (t + t).numpy().sum() == 128
try:
    sbp.flax.jit
except ImportError as error:
    assert "pip install 'sbp-jax[flax]'" in str(error), error
else:
    raise AssertionError("sbp.flax without Flax")
"""


def test_the_library_needs_neither_flax_nor_optax() -> None:
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_what_an_extra_needs_counts_where_it_is_installed(monkeypatch) -> None:
    lines = ["jax>=0.10", "flax>=0.12; extra == 'flax'", "matplotlib>=3.9; extra == 'plot'", "rich"]
    monkeypatch.setattr(facts.importlib.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(facts, "versions", lambda names: dict.fromkeys(names, "0.11"))
    assert facts._required() == {"jax": "0.10", "flax": "0.12"}
    monkeypatch.setattr(facts, "versions", lambda names: {})
    assert facts._required() == {"jax": "0.10"}
