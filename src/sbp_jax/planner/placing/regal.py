"""REGAL: a biased random-key genetic search over devices and orders, with priors that a graph network learns.

Paliwal, Gimeno, Nair, Li, Lubin, Kohli and Vinyals, "Reinforced Genetic Algorithm Learning for Optimizing Computation
Graphs", ICLR 2020, arXiv:1905.02494. A chromosome has a key in [0, 1] for each op and device, of which the largest is
the op's device, and one for each op's priority. The elite goes on as it is, some are drawn anew, and the others take
each key from an elite parent more often than from the other. From what Beta distribution an op's new keys are drawn,
and how often they are an elite parent's, a graph network says (``regal_priors.py``), which REINFORCE trains on what
short searches with its priors find. ``priors="uniform"`` is the search alone.
"""

from collections.abc import Sequence

import numpy as np

from ..catalogue import Option, register
from .devices import Devices
from .graph import OpGraph
from .policy import Judge, Judged, Policy, learned
from .policy import train as trained
from .regal_priors import Priors, network, priors_of, uniform
from .simulate import Simulator
from .task import SEED, Placing, PlacingTask, finished

_TRAINING = {"generations": 4, "population": 12}


@register(
    "regal", family="placing", promises="none", decides="the device of every op, and the order",
    paper="Paliwal et al.: Reinforced Genetic Algorithm Learning for Optimizing Computation Graphs, ICLR 2020, "
    "arXiv:1905.02494",
    options=(
        Option("generations", 100, "rounds of selection", least=1),
        Option("population", 50, "chromosomes a round", least=4),
        Option("elite", 0.2, "the part that goes on as it is", least=0.01, most=0.9),
        Option("mutants", 0.15, "the part that is drawn anew", least=0.0, most=0.9),
        Option("priors", "learned", "of new keys, and of whom a key comes from", possible=("learned", "uniform")),
        Option("steps", 20, "updates of the network for priors", least=1),
        Option("samples", 8, "priors drawn for an update", least=2),
        SEED,
    ),
)  # fmt: skip
def regal(task: PlacingTask) -> Placing:
    """The best chromosome met; priors are learned on this graph."""
    o = task.options
    how = {name: o[name] for name in ("elite", "mutants", "seed")}
    whole = {"generations": o["generations"], "population": o["population"]}
    if o["priors"] == "uniform" or not len(task.graph):
        found = searched(task.simulator, uniform(task.simulator), **whole, **how)
        return finished(task, found.device, found.order)
    return learned(task, "regal", network(len(task.devices)), judge(**_TRAINING, **how), final=judge(**whole, **how))


def train(
    graphs: Sequence[OpGraph], devices: Devices, *, steps: int = 100, samples: int = 8, seed: int = 0,
    generations: int = 100, population: int = 50,
) -> Policy:  # fmt: skip
    """Priors for graphs like these; its ``place`` searches others with them. Errors are those of ``policy.train``."""
    final = judge(generations=generations, population=population, seed=seed)
    return trained("regal", network(len(devices)), graphs, devices, steps=steps, samples=samples, seed=seed,
                   judge=judge(**_TRAINING, seed=seed), final=final)  # fmt: skip


def judge(**how: float) -> Judge:
    """What a search with the priors that actions stand for finds."""
    return lambda s, actions: searched(s, priors_of(s, actions), **how)  # pyright: ignore[reportArgumentType]


def searched(
    s: Simulator, priors: Priors, *, generations: int, population: int, elite: float = 0.2, mutants: float = 0.15,
    seed: int = 0,
) -> Judged:  # fmt: skip
    """The best chromosome of a search."""
    random, size = np.random.default_rng(seed), population
    best = max(1, int(elite * size))
    new = min(int(mutants * size), size - best)
    keys = priors.drawn(random, size)
    scores = np.array([_score(s, x) for x in keys])
    for _ in range(generations):
        rank = np.argsort(scores, kind="stable")
        keys, scores = keys[rank], scores[rank]
        children = size - best - new
        mothers, others = random.integers(best, size=children), random.integers(best, size, size=children)
        take = random.random((children, keys.shape[1])) < priors.bias
        born = np.concatenate([np.where(take, keys[mothers], keys[others]), priors.drawn(random, new)])
        keys = np.concatenate([keys[:best], born])
        scores = np.concatenate([scores[:best], [_score(s, x) for x in born]])
    k = int(scores.argmin())
    device, order = _read(s, keys[k])
    return Judged(float(scores[k]), device, order)


def _read(s: Simulator, keys: np.ndarray) -> tuple[list[int], list[int]]:
    """The devices and the order that a chromosome stands for."""
    g = s.graph
    affinity = keys[: len(g) * len(s.devices)].reshape(len(g), len(s.devices))
    device = np.where(s.possible, affinity, -1.0).argmax(axis=1).tolist()
    priority = keys[len(g) * len(s.devices) :]
    # An op's priority counts for all that it waits for, so that the order can be run.
    rank = [0.0] * len(g)
    for v in range(len(g) - 1, -1, -1):
        rank[v] = max([float(priority[v]), *(rank[b] for b in g.after[v])])
    return device, sorted(range(len(g)), key=lambda v: (-rank[v], v))


def _score(s: Simulator, keys: np.ndarray) -> float:
    device, order = _read(s, keys)
    return min(s.score(device, order), s.score(device))
