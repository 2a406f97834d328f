"""Contiguous splits by dynamic programming over ideals.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient Algorithms for Device Placement of DNN Graph
Operators", NeurIPS 2020, arXiv:2006.16423, section 5.1. An ideal is a set of ops that holds all that its ops read;
the ops of one device are the difference of two ideals. Devices take their turns in any order, for they are unlike. A
device's load is the seconds of its ops and of the bytes that enter and leave it; the paper, for pipelines, minimises
the largest load. One run through the graph may want less: the least sum of loads is found too, and the better one in
the simulated run is kept. For graphs with too many ideals the paper orders the ops in a line.

An op has one device here. The paper's replicated parts are ``dnn_replication``, of the stages' family.
"""

import itertools
import math

import numpy as np

from ...errors import PlanError
from ..catalogue import Option, register
from .simulate import Simulator
from .task import Placing, PlacingTask, finished

_MOST_STATES = 1024
_GOALS = ("either", "largest", "sum")


@register(
    "dnn_partitioning", family="placing", promises="none", decides="the device of every op, in contiguous parts",
    paper="Tarnawski et al.: Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, "
    "arXiv:2006.16423, section 5.1",
    options=(
        Option("most_ideals", 3000, "graphs with more of them are refused", least=2),
        Option("linear", False, "ops in a line, so that there are few ideals"),
        Option("replication", False, "parts on several devices: not of this family, which says where they are"),
        Option("goal", "either", "what of the devices' loads is least; either: whichever is better", possible=_GOALS),
    ),
)  # fmt: skip
def dnn_partitioning(task: PlacingTask) -> Placing:
    """The contiguous split with the least loads."""
    if task.options["replication"]:
        raise PlanError(
            "replication=True of solver 'dnn_partitioning': an op has one device when ops are placed. Stages of a "
            "pipeline may have several: sbp.Pipeline(stages='auto', search='dnn_replication') is the same program with "
            "replicated parts"
        )
    s = task.simulator
    ideals = _line(s) if task.options["linear"] else _ideals(s, task.options["most_ideals"])
    goal = task.options["goal"]
    splits = _Splits(s, ideals)
    tried = [splits.best(largest) for largest in (True, False) if goal == "either" or largest == (goal == "largest")]
    return finished(task, min(tried, key=s.score), notes=(f"{len(ideals)} ideals",))


def _line(s: Simulator) -> np.ndarray:
    ops = len(s.graph)
    found = np.zeros((ops + 1, ops), bool)
    for k, v in enumerate(s.mean_order):
        found[k + 1 :, v] = True
    return found


def _ideals(s: Simulator, most: int) -> np.ndarray:
    """(ideals, ops), smaller ones first."""
    g = s.graph
    needs = [sum(1 << u for u in before) for before in g.before]
    level, every = {0}, [0]
    while level:
        level = {
            ideal | 1 << v for ideal in level for v in range(len(g)) if not ideal >> v & 1 and needs[v] & ~ideal == 0
        }
        every += sorted(level)
        if len(every) > most:
            raise PlanError(
                f"the graph of {len(g)} ops has over {most} ideals (its branches are many): merge more ops (ops=...), "
                "or pass solver_options={'linear': True} or a larger 'most_ideals'"
            )
    return np.array([[x >> v & 1 for v in range(len(g))] for x in every], bool).reshape(len(every), len(g))


class _Splits:
    def __init__(self, s: Simulator, ideals: np.ndarray) -> None:
        g = s.graph
        self.s, self.ideals, self.n = s, ideals, len(s.devices)
        inner = [t for t in g.tensors if t.maker >= 0]
        self.made = ideals[:, [t.maker for t in inner]]
        self.read = np.zeros((len(ideals), len(inner)), int)
        for k, t in enumerate(inner):
            self.read[:, k] = ideals[:, list(t.readers)].sum(axis=1)
        self.readers = np.array([len(t.readers) for t in inner], int)
        # Bytes cost what they do on average between a device and the others.
        sizes = np.array([t.size_bytes for t in inner])
        both = [x + x.T for x in (s.devices.transfer_seconds(0.0), s.devices.transfer_seconds(1.0))]
        wait, one = (x.sum(axis=1) / (2 * max(self.n - 1, 1)) for x in both)
        self.tensor_seconds = wait[:, None] + (one - wait)[:, None] * sizes[None, :]
        self.op_seconds = np.where(s.possible, g.seconds, 1e9)
        self.bytes = ideals @ g.own_bytes

    def loads(self, at: int, below: np.ndarray) -> np.ndarray:
        """(devices, smaller ideals): the load of what ideal ``at`` has beyond each; ``inf`` where memory is short."""
        parts = self.ideals[at] & ~self.ideals[below]
        compute = self.op_seconds.T @ parts.T.astype(float)
        made, there = self.made[at] & ~self.made[below], self.made[below]
        enters = there & (self.read[at] > self.read[below])
        leaves = made & (self.read[at] < self.readers)
        loads = compute + self.tensor_seconds @ (enters | leaves).T.astype(float)
        loads[self.bytes[at] - self.bytes[below] > self.s.limits[:, None]] += 1e12
        return loads

    def best(self, largest: bool) -> list[int]:
        """By op its device, with the least largest load or the least sum of loads."""
        many = len(self.ideals)
        first, count = self.alike()
        used_of = list(itertools.product(*(range(k + 1) for k in count)))  # how many of each kind are used
        number = {used: k for k, used in enumerate(used_of)}
        cost = np.full((len(used_of), many), np.inf)
        cost[:, 0] = 0.0
        came = np.zeros((len(used_of), many, 2), int)  # the smaller ideal, and the kind that runs what is beyond it
        less = {(u, c): number[(*used[:c], used[c] - 1, *used[c + 1 :])]
                for u, used in enumerate(used_of) for c in range(len(count)) if used[c]}  # fmt: skip
        for at in range(1, many):
            below = np.flatnonzero(~(self.ideals[:at] & ~self.ideals[at]).any(axis=1))
            loads = self.loads(at, below)
            for (u, c), before in less.items():
                known = cost[before, below]
                total = np.maximum(known, loads[first[c]]) if largest else known + loads[first[c]]
                k = int(total.argmin())
                if total[k] < cost[u, at]:
                    cost[u, at], came[u, at] = total[k], (below[k], c)
        device = [0] * self.ideals.shape[1]
        u, at = len(used_of) - 1, many - 1
        while at:
            smaller, c = map(int, came[u, at])
            # Of devices alike the one whose number is how many are used with it.
            d = [d for d, other in enumerate(self.kind) if other == c][used_of[u][c] - 1]
            for v in np.flatnonzero(self.ideals[at] & ~self.ideals[smaller]):
                device[int(v)] = d
            u, at = less[u, c], smaller
        return device

    def alike(self) -> tuple[list[int], list[int]]:
        """By kind of device, all whose loads are the same, the first of them and how many there are."""
        first, self.kind = list[int](), list[int]()
        for d in range(self.n):
            for c, e in enumerate(first):
                columns = (self.op_seconds, self.tensor_seconds.T)
                if self.s.limits[d] == self.s.limits[e] and all(np.array_equal(x[:, d], x[:, e]) for x in columns):
                    self.kind.append(c)
                    break
            else:
                self.kind.append(len(first))
                first.append(d)
        count = [self.kind.count(c) for c in range(len(first))]
        if math.prod(k + 1 for k in count) > _MOST_STATES:
            raise PlanError(
                f"'dnn_partitioning' remembers which of the devices are used and is meant for up to 10 unlike ones, or "
                f"more of a few kinds; these are {self.n} of {len(first)} kinds. Use 'heft'"
            )
        return first, count
