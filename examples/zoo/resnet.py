"""Residual networks for images (He et al., arXiv:1512.03385) in Flax nnx, trained by SGD with momentum."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .common import Case, Tree, adamw, configure, cross_entropy
from .images import patterns
from .nnx_case import case_of_module


@dataclass(frozen=True, slots=True)
class ResnetConfig:
    """A stem, then one stage for each entry of ``channels``, of ``blocks`` blocks (one number, or one a stage).

    Images are (batch, pixels, pixels, 3). ``bottleneck`` blocks have a 1x1, a 3x3 and a 1x1 convolution and make four
    times their channels; the others have two 3x3. The stem is one convolution with a window of ``stem`` pixels, of
    stride 2 where that is over 3. ``optimizer`` is "sgd" (momentum 0.9) or "adamw".
    """

    channels: tuple[int, ...] = (16, 32)
    blocks: int | tuple[int, ...] = 1
    bottleneck: bool = False
    stem: int = 3
    pixels: int = 16
    classes: int = 16
    batch: int = 16
    dropout: float = 0.1
    dtype: str = "float32"
    optimizer: str = "sgd"
    learning_rate: float = 0.05

    @property
    def stages(self) -> Sequence[int]:
        """The number of blocks in each stage."""
        return self.blocks if isinstance(self.blocks, tuple) else (self.blocks,) * len(self.channels)


SIZES = {
    "tiny": ResnetConfig(),
    "resnet18": ResnetConfig(channels=(64, 128, 256, 512), blocks=2, pixels=64, classes=1024, batch=64, dropout=0.0),
    "resnet50": ResnetConfig(
        channels=(64, 128, 256, 512), blocks=(3, 4, 6, 3), bottleneck=True, stem=7, pixels=224, classes=1000, batch=128,
        dropout=0.0,
    ),
    "million-classes": ResnetConfig(channels=(64, 128), classes=2**20, batch=64, dropout=0.0),
}  # fmt: skip


def conv(n_in: int, n_out: int, size: int, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Conv:
    """A convolution with a square window and no bias."""
    return nnx.Conv(n_in, n_out, (size, size), stride, use_bias=False, dtype=dtype, rngs=rngs)


def norm(n: int, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Batch norm over the last dimension."""
    return nnx.BatchNorm(n, momentum=0.9, dtype=dtype, rngs=rngs)


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions and a shortcut, (batch, y, x, n_in) -> (batch, y/stride, x/stride, n_out)."""

    def __init__(self, n_in: int, n_out: int, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.conv_1 = conv(n_in, n_out, 3, stride, dtype, rngs)
        self.norm_1 = norm(n_out, dtype, rngs)
        self.conv_2 = conv(n_out, n_out, 3, 1, dtype, rngs)
        self.norm_2 = norm(n_out, dtype, rngs)
        self.shortcut = conv(n_in, n_out, 1, stride, dtype, rngs) if stride > 1 or n_in != n_out else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm_1(self.conv_1(x)))
        y = self.norm_2(self.conv_2(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut, (batch, y, x, n_in) -> (batch, y/stride, x/stride, 4 middle)."""

    def __init__(self, n_in: int, middle: int, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        n_out = 4 * middle
        self.conv_1, self.norm_1 = conv(n_in, middle, 1, 1, dtype, rngs), norm(middle, dtype, rngs)
        self.conv_2, self.norm_2 = conv(middle, middle, 3, stride, dtype, rngs), norm(middle, dtype, rngs)
        self.conv_3, self.norm_3 = conv(middle, n_out, 1, 1, dtype, rngs), norm(n_out, dtype, rngs)
        self.shortcut = conv(n_in, n_out, 1, stride, dtype, rngs) if stride > 1 or n_in != n_out else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm_1(self.conv_1(x)))
        y = nnx.relu(self.norm_2(self.conv_2(y)))
        y = self.norm_3(self.conv_3(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Resnet(nnx.Module):
    """Images (batch, pixels, pixels, 3) -> logits (batch, classes)."""

    def __init__(self, config: ResnetConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.stem = conv(3, config.channels[0], config.stem, 2 if config.stem > 3 else 1, dtype, rngs)
        self.norm = norm(config.channels[0], dtype, rngs)
        blocks, n_in = [], config.channels[0]
        for stage, n_out in enumerate(config.channels):
            for i in range(config.stages[stage]):
                block = Bottleneck if config.bottleneck else BasicBlock
                blocks.append(block(n_in, n_out, 2 if stage > 0 and i == 0 else 1, dtype, rngs))
                n_in = 4 * n_out if config.bottleneck else n_out
        self.blocks = nnx.List(blocks)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.head = nnx.Linear(n_in, config.classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.stem(images)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(x.mean((1, 2))))


# In each block the first convolution is split by output features with its norm, the second by input features.
MEGATRON = (
    (r"conv_1/kernel\b", -1),
    (r"norm_1/(scale|bias|mean|var)\b", -1),
    (r"conv_2/kernel\b", -2),
    (r"head/(kernel|bias)\b", -1),
)


def loss_fn(model: Resnet, batch: Tree) -> jax.Array:
    """Mean cross entropy in nats an image."""
    return cross_entropy(model(batch["images"]), batch["labels"])


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``ResnetConfig``."""
    config = configure(SIZES, size, overrides)
    if config.optimizer not in ("sgd", "adamw"):
        raise ValueError(f"optimizer is 'sgd' or 'adamw', got {config.optimizer!r}")
    sgd = config.optimizer == "sgd"

    return case_of_module(
        "resnet",
        lambda: Resnet(config, nnx.Rngs(0)),
        optax.sgd(config.learning_rate, momentum=0.9) if sgd else adamw(config.learning_rate),
        loss_fn,
        lambda seed: patterns(seed, config.batch, config.pixels, config.classes),
        layers=2 + (3 if config.bottleneck else 2) * sum(config.stages),
        optimizer="sgd+momentum" if sgd else "adamw+clip",
        megatron_rules=MEGATRON,
    )
