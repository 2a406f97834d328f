"""A wide residual network (Zagoruyko and Komodakis, arXiv:1605.07146) in Flax nnx, trained by SGD with momentum.

WRN-d-k: three stages of (d - 4) / 6 pre-activation blocks whose convolutions are k times as wide as a ResNet's.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .common import Case, Tree, configure, cross_entropy
from .images import patterns
from .nnx_case import case_of_module
from .resnet import conv


@dataclass(frozen=True, slots=True)
class WideResnetConfig:
    """``depth`` counts convolutions, 6 n + 4; ``widen`` is k. Images are (batch, pixels, pixels, 3)."""

    depth: int = 10
    widen: int = 2
    pixels: int = 16
    classes: int = 16
    batch: int = 16
    dtype: str = "float32"
    learning_rate: float = 0.05


SIZES = {
    "tiny": WideResnetConfig(),
    "wrn-28-10": WideResnetConfig(28, 10, pixels=32, classes=128, batch=1024, dtype="bfloat16"),
    "wrn-40-64": WideResnetConfig(40, 64, pixels=64, classes=1024, batch=1024, dtype="bfloat16"),
}


class WideBlock(nnx.Module):
    """Norm, ReLU, 3x3 convolution, twice, and a shortcut: (batch, y, x, n_in) -> (batch, y/stride, x/stride, n_out)."""

    def __init__(self, n_in: int, n_out: int, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.norm_1 = nnx.BatchNorm(n_in, momentum=0.9, dtype=dtype, rngs=rngs)
        self.conv_1 = conv(n_in, n_out, 3, stride, dtype, rngs)
        self.norm_2 = nnx.BatchNorm(n_out, momentum=0.9, dtype=dtype, rngs=rngs)
        self.conv_2 = conv(n_out, n_out, 3, 1, dtype, rngs)
        self.shortcut = conv(n_in, n_out, 1, stride, dtype, rngs) if stride > 1 or n_in != n_out else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm_1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        return x + self.conv_2(nnx.relu(self.norm_2(self.conv_1(y))))


class WideResnet(nnx.Module):
    """Images (batch, pixels, pixels, 3) -> logits (batch, classes)."""

    def __init__(self, config: WideResnetConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.stem = conv(3, 16, 3, 1, dtype, rngs)
        blocks, n_in = [], 16
        for stage in range(3):
            for i in range((config.depth - 4) // 6):
                n_out = 16 * 2**stage * config.widen
                blocks.append(WideBlock(n_in, n_out, 2 if stage > 0 and i == 0 else 1, dtype, rngs))
                n_in = n_out
        self.blocks = nnx.List(blocks)
        self.norm = nnx.BatchNorm(n_in, momentum=0.9, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(n_in, config.classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(nnx.relu(self.norm(x)).mean((1, 2)))


# In each block the first convolution is split by output features with the norm after it, the second by inputs.
MEGATRON = (
    (r"conv_1/kernel\b", -1),
    (r"norm_2/(scale|bias|mean|var)\b", -1),
    (r"conv_2/kernel\b", -2),
    (r"head/(kernel|bias)\b", -1),
)


def loss_fn(model: WideResnet, batch: Tree) -> jax.Array:
    """Mean cross entropy in nats an image."""
    return cross_entropy(model(batch["images"]), batch["labels"])


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``WideResnetConfig``."""
    config = configure(SIZES, size, overrides)
    if (config.depth - 4) % 6:
        raise ValueError(f"depth is 6 n + 4 (10, 16, 22, 28, ...), got {config.depth}")
    return case_of_module(
        "wide_resnet",
        lambda: WideResnet(config, nnx.Rngs(0)),
        optax.sgd(config.learning_rate, momentum=0.9),
        loss_fn,
        lambda seed: patterns(seed, config.batch, config.pixels, config.classes),
        layers=config.depth,
        optimizer="sgd+momentum",
        megatron_rules=MEGATRON,
    )
