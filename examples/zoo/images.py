"""Images with something to learn."""

import numpy as np

from .common import Tree

_MOST_PATTERNS = 4096


def patterns(seed: int, batch: int, pixels: int, classes: int) -> Tree:
    """Each class is a smooth pattern of its own, seen through noise: images (batch, pixels, pixels, 3), labels."""
    rng, own = np.random.default_rng(seed), np.random.default_rng(0)
    labels = rng.integers(0, classes, batch)
    coarse = own.standard_normal((min(classes, _MOST_PATTERNS), 4, 4, 3), np.float32)
    images = coarse[labels % len(coarse)].repeat(pixels // 4, 1).repeat(pixels // 4, 2)
    images += 0.5 * rng.standard_normal(images.shape, np.float32)
    return {"images": images, "labels": labels.astype(np.int32)}
