"""A vision transformer (Dosovitskiy et al., arXiv:2010.11929) in plain JAX: patches, blocks, mean, classes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .common import Case, Tree, adamw, configure, cross_entropy, normal, through, trained
from .gpt import layer_norm
from .images import patterns
from .transformer import attend, init_attention, init_mlp, init_norm, mlp


@dataclass(frozen=True, slots=True)
class VitConfig:
    """Images are (batch, pixels, pixels, 3), cut into patches of ``patch`` by ``patch``. ``dtype`` computes."""

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    patch: int = 4
    pixels: int = 16
    classes: int = 16
    batch: int = 16
    dtype: str = "float32"
    remat: bool = False
    scan_layers: bool = False
    learning_rate: float = 3e-3

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.pixels // self.patch) ** 2


_LARGE = {"pixels": 224, "classes": 1024, "batch": 512, "dtype": "bfloat16", "learning_rate": 1e-3}
SIZES = {
    "tiny": VitConfig(),
    "vit-b16": VitConfig(layers=12, hidden=768, heads=12, patch=16, **_LARGE),
    "vit-l16": VitConfig(layers=24, hidden=1024, heads=16, patch=16, **_LARGE),
    "vit-h14": VitConfig(layers=32, hidden=1280, heads=16, patch=14, **_LARGE),
}

# Column-parallel into the heads and the MLP's middle, row-parallel out of them, classes split.
MEGATRON = ((r"[wb]_(q|k|v|in)$", -1), (r"w_(o|out)$", -2), (r"(^|/)(w|b)_head$", -1))


def init_params(config: VitConfig, key: jax.Array) -> Tree:
    """The parameters: normal(0.02), the matrices that end a residual branch scaled by 1/sqrt(2 layers)."""
    h, std, std_out = config.hidden, 0.02, 0.02 / (2 * config.layers) ** 0.5
    key_patch, key_position, key_head, *keys = jax.random.split(key, config.layers + 3)

    def block(key: jax.Array) -> Tree:
        first, second = jax.random.split(key)
        return init_attention(first, h, std, std_out) | init_mlp(second, h, std, std_out)

    blocks = [block(k) for k in keys]
    length = config.patch**2 * 3
    return {
        "w_patch": normal(key_patch, (length, h), length**-0.5),
        "positions": normal(key_position, (config.patches, h), std),
        "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks) if config.scan_layers else blocks,
        "norm": init_norm(h),
        "w_head": normal(key_head, (h, config.classes), std),
        "b_head": jnp.zeros(config.classes),
    }


def forward(config: VitConfig, params: Tree, images: jax.Array) -> jax.Array:
    """Logits (batch, classes) of images (batch, pixels, pixels, 3)."""
    n, size = config.pixels // config.patch, config.patch
    # A convolution whose stride is its window is one matrix product on the patches.
    patches = images.reshape(-1, n, size, n, size, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, n * n, size * size * 3)
    x = patches.astype(config.dtype) @ params["w_patch"].astype(config.dtype)
    x = x + params["positions"].astype(config.dtype)

    def block(x: jax.Array, p: Tree) -> jax.Array:
        p = jax.tree.map(lambda leaf: leaf.astype(config.dtype), p)
        return mlp(attend(x, p, config.heads, causal=False), p)

    x = through(params["blocks"], block, x, config.remat)
    return layer_norm(x, params["norm"]).astype(jnp.float32).mean(1) @ params["w_head"] + params["b_head"]


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``VitConfig``."""
    config = configure(SIZES, size, overrides)

    def loss_fn(params: Tree, batch: Tree) -> jax.Array:
        return cross_entropy(forward(config, params, batch["images"]), batch["labels"])

    def batch(seed: int) -> Tree:
        return patterns(seed, config.batch, config.pixels, config.classes)

    return trained(
        "vit", adamw(config.learning_rate), lambda: init_params(config, jax.random.key(0)), loss_fn, batch,
        config.layers, "adamw+clip", MEGATRON,
    )  # fmt: skip
