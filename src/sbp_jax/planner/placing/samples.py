"""Random graphs of ops: to train policies on, and to try methods."""

import numpy as np

from .devices import Devices
from .graph import OpGraph, Tensor


def sample_graph(seed: int, ops: int, devices: Devices, apart: float = 0.3) -> OpGraph:
    """A random graph in layers of one to four ops.

    Ops take about a millisecond on the device of middle speed. On each device that is multiplied by a factor of its
    own, from 0.5 to 4 in all, and by chance for each op up to a factor of 2. ``apart``: what a transfer takes on
    average, as a part of an op. Every op holds arguments of about a thousandth of the smallest memory.
    """
    random = np.random.default_rng(seed)
    n = len(devices)
    speed = np.exp(np.linspace(np.log(0.5), np.log(4.0), n)) if n > 1 else np.ones(1)
    work = np.exp(random.normal(-7.0, 0.7, size=ops))
    seconds = work[:, None] * speed * np.exp(random.uniform(-0.7, 0.7, size=(ops, n)))
    layer, k = np.zeros(ops, int), 0
    while k < ops:
        wide = int(random.integers(1, 5))
        layer[k : k + wide] = layer[k - 1] + 1 if k else 0
        k += wide
    readers: list[list[int]] = [[] for _ in range(ops)]
    for v in range(ops):
        earlier = np.flatnonzero(layer[:v] < layer[v])
        near = earlier[-6:]
        for u in random.choice(near, size=min(len(near), int(random.integers(1, 4))), replace=False):
            readers[int(u)].append(v)
    rate = float(np.array(devices.bytes_per_second)[~np.eye(n, dtype=bool)].mean()) if n > 1 else 1.0
    sizes = np.exp(random.normal(0.0, 0.5, size=ops)) * apart * float(work.mean()) * rate
    held = devices.limits.min() * 1e-3 * random.random(ops)
    tensors = [Tensor(v, float(sizes[v]), tuple(sorted(readers[v])), not readers[v]) for v in range(ops)]
    tensors += [Tensor(-1, float(held[v]), (v,)) for v in range(ops)]
    return OpGraph(tuple(f"op {v}" for v in range(ops)), seconds, tuple(tensors), np.zeros(ops))
