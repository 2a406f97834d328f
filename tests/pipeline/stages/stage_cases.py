"""Problems of stage planning for the tests, and the same found by trying all plans."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sbp_jax.pipeline.stages import InFlight, StageCosts


@dataclass(frozen=True, slots=True)
class Option:
    """A sub-mesh option that is no more than a number and a label."""

    devices: int
    label: str = ""

    def __str__(self) -> str:
        return self.label or str(self.devices)


def options(*sizes: int) -> list[Option]:
    return [Option(n) for n in sizes]


def linear(
    work: Sequence[float] | np.ndarray,
    sizes: Sequence[int],
    *,
    weights: float = 0.0,
    activations: float = 0.0,
    transfer_seconds: Sequence[float] | None = None,
    once_seconds: np.ndarray | None = None,
) -> StageCosts:
    """Stages whose seconds are the sum of their layers' work over the devices, and bytes likewise for each layer."""
    reached = np.concatenate(([0.0], np.cumsum(work)))
    amount = np.maximum(reached[None, :] - reached[:-1, None], 0.0)[:, :, None]
    index = np.arange(len(work) + 1)
    count = np.maximum(index[None, :] - index[:-1, None], 0)[:, :, None]
    each = np.array(sizes, float)
    return StageCosts(amount / each, transfer_seconds, once_seconds, count * weights / each, count * activations / each)


def random_costs(rng: np.random.Generator, layers: int, sizes: Sequence[int], is_rich: bool) -> StageCosts:
    """Any numbers; if ``is_rich``, with transfers, once a step, bytes, and stages that are not possible."""
    shape = (layers, layers + 1, len(sizes))
    seconds = rng.uniform(0.5, 1.5, shape) * (np.arange(layers + 1)[None, :, None] + 1) / np.sqrt(np.array(sizes))
    if not is_rich:
        return StageCosts(seconds)
    seconds[rng.random(shape) < 0.15] = np.inf
    return StageCosts(
        seconds,
        rng.uniform(0, 0.7, layers),
        rng.uniform(0, 3, shape),
        rng.uniform(0, 3, shape),
        rng.uniform(0, 2, shape),
    )


def all_plans(layers: int, sizes: Sequence[int], devices: int, use_all: bool) -> Iterator[list[tuple[int, int, int]]]:
    for count in range(1, layers + 1):
        for cuts in itertools.combinations(range(1, layers), count - 1):
            ends = itertools.pairwise((0, *cuts, layers))
            for chosen, which in itertools.product([list(ends)], itertools.product(range(len(sizes)), repeat=count)):
                used = sum(sizes[o] for o in which)
                if used == devices or (not use_all and used < devices):
                    yield [(i, j, o) for (i, j), o in zip(chosen, which, strict=True)]


def total_of(
    plan: list[tuple[int, int, int]], costs: StageCosts, microbatches: int, overlaps: bool,
    window: InFlight | None = None,
) -> float:  # fmt: skip
    """The model of ``plan_stages``, stage by stage."""
    if not np.isfinite([costs.seconds[s] for s in plan]).all():
        return np.inf
    given = np.asarray(costs.transfer_seconds)
    latencies, paces, onces = [], [], []
    for i, j, o in plan:
        compute = costs.seconds[i, j, o]
        back, forward = given[i, o] / 2 if i else 0.0, given[j, o] / 2 if j < costs.layers else 0.0
        latencies.append(compute + back + forward)
        paces.append(max(compute, back + forward) if overlaps else compute + back + forward)
        onces.append(0.0 if costs.once_seconds is None else costs.once_seconds[i, j, o])
    for s, (i, _, o) in enumerate(plan):
        if window is None:
            break
        # A micro-batch leaves stage s, and comes back to it before the next one that it has no room for.
        way = sum(latencies[s:]) - (given[i, o] / 2 if i else 0.0)
        paces.append(way / window(len(plan) - 1 - s, 1000))
    return sum(latencies) + (microbatches - 1) * max(paces) + max(onces)


def fits(plan: list[tuple[int, int, int]], costs: StageCosts, held: Sequence[int], limit: float | None) -> bool:
    """Whether each stage's bytes, with ``held[stages after it]`` micro-batches in flight, are within the limit."""
    if limit is None or costs.weights_bytes is None or costs.activation_bytes is None:
        return True
    return all(
        costs.weights_bytes[s] + held[len(plan) - 1 - n] * costs.activation_bytes[s] <= limit
        for n, s in enumerate(plan)
    )
