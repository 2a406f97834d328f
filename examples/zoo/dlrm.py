"""A recommendation model in plain JAX (DLRM, Naumov et al., arXiv:1906.00091), trained by Adagrad.

26 categorical features have an embedding table each, of very different lengths; 13 numbers go through the bottom
perceptron; the dot products of all pairs of the 27 vectors, and the bottom's result, through the top one.
"""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .common import Case, Tree, configure, normal, trained

# Categories of the Criteo Terabyte features as MLPerf counts them (at most 40 million).
CRITEO = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209,
          11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36)  # fmt: skip
_ROWS = 1024


@dataclass(frozen=True, slots=True)
class DlrmConfig:
    """``tables`` are the categories of each feature, ``dim`` the length of their vectors.

    Tables of more than 1024 rows are filled up to a multiple of that, so that any mesh can split them by rows.
    ``bottom`` and ``top`` are the widths of the perceptrons' layers before their last, which makes ``dim`` and 1.
    """

    tables: tuple[int, ...] = tuple(min(c, 64) for c in CRITEO)
    dim: int = 16
    numbers: int = 13
    bottom: tuple[int, ...] = (32,)
    top: tuple[int, ...] = (64,)
    batch: int = 16
    dtype: str = "float32"
    learning_rate: float = 0.05


SIZES = {
    "tiny": DlrmConfig(),
    "criteo": DlrmConfig(CRITEO, 128, bottom=(512, 256), top=(1024, 1024, 512, 256), batch=65_536),
    # A tenth of every table fits small machines.
    "criteo-small": DlrmConfig(
        tuple(max(2, c // 10) for c in CRITEO), 128, bottom=(512, 256), top=(1024, 512), batch=16_384
    ),
}

# Tables by rows; the top perceptron's first pair column- and row-parallel.
MEGATRON = ((r"tables/(0|1|2|3|4|9|10|11|13|14|19|20|21|22|23)$", -2), (r"top/0/[wb]$", -1), (r"top/1/w$", -2))


def perceptron(x: jax.Array, layers: Tree, dtype: str) -> jax.Array:
    """Dense layers with ReLU after all but the last; (batch, first width) -> (batch, last width)."""
    for i, p in enumerate(layers):
        x = x @ p["w"].astype(dtype) + p["b"].astype(dtype)
        x = jax.nn.relu(x) if i < len(layers) - 1 else x
    return x


def forward(config: DlrmConfig, params: Tree, batch: Tree) -> jax.Array:
    """Logits (batch,) of a click."""
    dense = perceptron(batch["numbers"].astype(config.dtype), params["bottom"], config.dtype)
    rows = [t[batch["categories"][:, i]].astype(config.dtype) for i, t in enumerate(params["tables"])]
    vectors = jnp.stack([dense, *rows], axis=1)
    dots = jnp.einsum("bid,bjd->bij", vectors, vectors)
    first, second = np.tril_indices(vectors.shape[1], -1)
    features = jnp.concatenate([dense, dots[:, first, second]], axis=1)
    return perceptron(features, params["top"], config.dtype)[:, 0].astype(jnp.float32)


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``DlrmConfig``."""
    config = configure(SIZES, size, overrides)
    vectors = len(config.tables) + 1
    bottom = (config.numbers, *config.bottom, config.dim)
    top = (config.dim + vectors * (vectors - 1) // 2, *config.top, 1)

    def init_params() -> Tree:
        keys = iter(jax.random.split(jax.random.key(0), len(config.tables) + len(bottom) + len(top)))

        def layers(widths: tuple[int, ...]) -> Tree:
            pairs = pairwise(widths)
            return [{"w": normal(next(keys), (a, b), (2 / a) ** 0.5), "b": jnp.zeros(b)} for a, b in pairs]

        rows = [n if n <= _ROWS else -(-n // _ROWS) * _ROWS for n in config.tables]
        tables = [normal(next(keys), (n, config.dim), config.dim**-0.5) for n in rows]
        return {"tables": tables, "bottom": layers(bottom), "top": layers(top)}

    def loss_fn(params: Tree, batch: Tree) -> jax.Array:
        # Cross entropy in nats of a yes or no, from its logit.
        logits = forward(config, params, batch)
        return jnp.mean(jax.nn.softplus(logits) - batch["labels"] * logits)

    def batch(seed: int) -> Tree:
        # The first numbers decide about the click.
        rng = np.random.default_rng(seed)
        numbers = rng.standard_normal((config.batch, config.numbers), np.float32)
        categories = np.stack([rng.integers(0, n, config.batch) for n in config.tables], 1)
        clicked = numbers[:, :4].sum(1) > 0
        return {"numbers": numbers, "categories": categories.astype(np.int32), "labels": clicked.astype(np.float32)}

    return trained(
        "dlrm", optax.adagrad(config.learning_rate), init_params, loss_fn, batch, len(bottom) + len(top) - 2, "adagrad",
        MEGATRON,
    )  # fmt: skip
