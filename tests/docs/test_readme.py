"""The README's code runs, in order, as one program; what it leaves to the reader stands here."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)

# The body that stands for the reader's, by the line that leaves it open.
BODIES = {
    "def train_step(state, batch): ...": (
        "def train_step(state, batch):\n"
        "    loss, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.square(batch @ w)))(state)\n"
        "    return state - 0.1 * grads, loss\n"
    ),
}


def filled(block: str) -> str:
    """A block with bodies in place of the open lines. One that nobody stands in for raises ``KeyError``."""

    def body(match: re.Match[str]) -> str:
        return BODIES[match[1]]

    return re.sub(r"^(def .*: \.\.\.).*\n", body, block, flags=re.M)


def reader() -> dict[str, Any]:
    """What the reader is taken to have at hand."""
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    return {
        "jax": jax,
        "jnp": jnp,
        "nnx": nnx,
        "state": jnp.ones((8, 8)),
        "batch": np.ones((16, 8), np.float32),
        "state_shapes": jax.ShapeDtypeStruct((8, 8), "float32"),
        "batch_shapes": jax.ShapeDtypeStruct((1024, 8), "float32"),
        "model": model,
        "optimizer": nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        "examples": {"x": np.ones((64, 8), np.float32), "y": np.zeros((64, 1), np.float32)},
        "params": jnp.ones((8, 1)),
        "regression": lambda w, batch: jnp.mean(jnp.square(batch["x"] @ w - batch["y"])),
        "loss_fn": lambda model, batch: jnp.mean(jnp.square(model(batch))),
    }


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert BLOCKS
    names = reader()
    pure_step: Any = None
    for block in BLOCKS:
        if "sbp.plan(train_step, state_shapes" in block:
            names["train_step"] = pure_step  # that of the first block; Flax's has the same name
        exec(compile(filled(block), "README.md", "exec"), names)
        if "sbp.flax.jit" in block:  # defined there, called by the reader
            assert float(names["train_step"](names["model"], names["optimizer"], names["batch"])) > 0
        elif "def train_step" in block:
            pure_step = names["train_step"]
    assert {path.name for path in tmp_path.iterdir()} >= {"plan.json", "step.json"}
    assert "proven optimal" in capsys.readouterr().out


def test_every_open_line_has_a_body_and_every_body_its_line() -> None:
    left_open = re.findall(r"^(def .*: \.\.\.)", "".join(BLOCKS), re.M)
    assert sorted(left_open) == sorted(BODIES)


def test_the_targets_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M)) <= targets


def test_the_files_it_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links and [link for link in links if not (ROOT / link).exists()] == []
