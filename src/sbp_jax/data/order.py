"""The order of an epoch: a permutation that any process can evaluate at any position, without talking to another.

It depends on the seed, the epoch and the number of examples, and on nothing else. The arithmetic is unsigned 64-bit, so
that it is the same with every version of numpy.
"""

import functools
import math

import numpy as np

# Up to here an epoch's order is held as an array (8 MB); above it, positions are computed one batch at a time.
_LARGEST_TABLE = 1 << 20
_ROUNDS = 8
_EPOCHS_KEPT = 4


def order(n: int, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """Which of ``n`` examples stand at ``positions`` (int64, each below ``n``) in this epoch."""
    if n <= _LARGEST_TABLE:
        return _table(n, seed, epoch)[positions]
    return _walk(n, seed, epoch, positions)


@functools.lru_cache(maxsize=_EPOCHS_KEPT)
def _table(n: int, seed: int, epoch: int) -> np.ndarray:
    """A uniform permutation: the examples sorted by a hash of their numbers."""
    table = np.argsort(_mixed(np.arange(n, dtype=np.uint64) + _key(seed, epoch, 0)), kind="stable")
    table.flags.writeable = False
    return table


def _walk(n: int, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """A Feistel network on the smallest square that holds ``n``, applied until the result is below ``n``.

    Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002): generalised Feistel and cycle walking.
    """
    side = math.isqrt(n - 1) + 1
    found = _feistel(positions.astype(np.uint64), side, seed, epoch)
    outside = np.flatnonzero(found >= n)
    while outside.size:
        found[outside] = _feistel(found[outside], side, seed, epoch)
        outside = outside[found[outside] >= n]
    return found.astype(np.int64)


def _feistel(x: np.ndarray, side: int, seed: int, epoch: int) -> np.ndarray:
    modulus = np.uint64(side)
    left, right = x // modulus, x % modulus
    for turn in range(_ROUNDS):
        left, right = right, (left + _mixed(right + _key(seed, epoch, turn)) % modulus) % modulus
    return left * modulus + right


def _key(seed: int, epoch: int, turn: int) -> np.uint64:
    key = np.zeros(1, np.uint64)
    for word in (seed, epoch, turn):
        key = _mixed(key ^ np.uint64(word & 0xFFFFFFFFFFFFFFFF))
    return key[0]


def _mixed(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014), with its increment. Unsigned arithmetic of arrays wraps."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
