"""REGAL's search: a biased random-key genetic algorithm over devices and orders.

Paliwal, Gimeno, Nair, Li, Lubin, Kohli and Vinyals, "Reinforced Genetic Algorithm Learning for Optimizing Computation
Graphs", ICLR 2020, arXiv:1905.02494, section 3.2. A chromosome has a key in [0, 1] for each op and device, of which the
largest is the op's device, and one for each op's priority. The elite goes on as it is, some are drawn anew, and the
others take each key from an elite parent more often than from the other. The paper draws new ones, and whom a key
comes from, by distributions that a graph network learns over many graphs; here they are the uniform ones of its start.
"""

import numpy as np

from ..catalogue import Option, register
from .simulate import Simulator
from .task import SEED, Placing, PlacingTask, finished


@register(
    "regal", family="placing", promises="none", decides="the device of every op, and the order",
    paper="Paliwal et al.: Reinforced Genetic Algorithm Learning for Optimizing Computation Graphs, ICLR 2020, "
    "arXiv:1905.02494, section 3.2",
    options=(
        Option("generations", 150, "rounds of selection", least=1),
        Option("population", 64, "chromosomes a round", least=4),
        Option("elite", 0.2, "the part that goes on as it is", least=0.01, most=0.9),
        Option("mutants", 0.15, "the part that is drawn anew", least=0.0, most=0.9),
        Option("bias", 0.7, "how often a key is the elite parent's", least=0.5, most=1.0),
        SEED,
    ),
)  # fmt: skip
def regal(task: PlacingTask) -> Placing:
    """The best chromosome met."""
    s, o = task.simulator, task.options
    random = np.random.default_rng(o["seed"])
    size, n = o["population"], len(task.devices)
    width = len(task.graph) * (n + 1)
    elite = max(1, int(o["elite"] * size))
    mutants = min(int(o["mutants"] * size), size - elite)
    keys = random.random((size, width))
    scores = np.array([_score(s, x) for x in keys])
    for _ in range(o["generations"]):
        rank = np.argsort(scores, kind="stable")
        keys, scores = keys[rank], scores[rank]
        children = size - elite - mutants
        mothers, others = random.integers(elite, size=children), random.integers(elite, size, size=children)
        take = random.random((children, width)) < o["bias"]
        born = np.concatenate([np.where(take, keys[mothers], keys[others]), random.random((mutants, width))])
        keys = np.concatenate([keys[:elite], born])
        scores = np.concatenate([scores[:elite], [_score(s, x) for x in born]])
    return finished(task, *_read(s, keys[int(scores.argmin())]))


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
