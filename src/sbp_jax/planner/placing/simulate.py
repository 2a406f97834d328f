"""What a placement takes: list scheduling, transfers one after the other on each link, bytes over time.

A device runs its ops one at a time in the order given. What an op reads of another device is sent once, over the link
from that device to this one, no earlier than it was made; a link sends in the order of the ops that ask. An op begins
when its device is free and all that it reads is there. So a schedule follows from the placement and the order.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import PlanError
from .devices import Devices
from .graph import OpGraph


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor on its way. ``tensor``, ``source`` and ``target`` are numbers."""

    tensor: int
    source: int
    target: int
    start_seconds: float
    finish_seconds: float


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """A simulated run.

    Attributes:
        device: by op its device.
        order: the ops in the order in which they were taken.
        start_seconds, finish_seconds: (ops,).
        transfers: what was sent.
        peak_bytes: (devices,), the most that each held at once: arguments, what was made or received, scratch.
    """

    device: tuple[int, ...]
    order: tuple[int, ...]
    start_seconds: np.ndarray
    finish_seconds: np.ndarray
    transfers: tuple[Transfer, ...]
    peak_bytes: np.ndarray

    @property
    def seconds(self) -> float:
        """When the last op is finished."""
        return float(self.finish_seconds.max(initial=0.0))


class Simulator:
    """Simulates placements of one graph on one set of devices."""

    def __init__(self, graph: OpGraph, devices: Devices) -> None:
        if graph.devices != len(devices):
            raise PlanError(f"the graph's seconds are for {graph.devices} devices, and there are {len(devices)}")
        self.graph, self.devices, self.limits = graph, devices, devices.limits
        self.costs = [devices.transfer_seconds(t.size_bytes).tolist() for t in graph.tensors]
        self._seconds = graph.seconds.tolist()
        self._inputs = [[(k, graph.tensors[k].maker, self.costs[k]) for k in ks] for ks in graph.reads]
        self._steps: list[list[tuple[int, list[list[float]]]]] = [[] for _ in range(len(graph))]
        for b, inputs in enumerate(self._inputs):
            largest: dict[int, list[list[float]]] = {}
            for _, u, cost in inputs:
                largest[u] = max(largest.get(u, cost), cost, key=lambda c: sum(map(sum, c)))
            for u, cost in largest.items():
                self._steps[u].append((b, cost))
        everything = sum(t.size_bytes for t in graph.tensors) + float(graph.scratch_bytes.max(initial=0.0))
        self.is_tight = bool(everything > self.limits.min())
        """Whether some placement may not fit."""

    @functools.cached_property
    def possible(self) -> np.ndarray:
        """(ops, devices): where an op can run."""
        return np.isfinite(self.graph.seconds)

    def order(self, device: Sequence[int]) -> list[int]:
        """Ops by the time from their start to the end of all that waits for them, the longest first."""
        rank = [0.0] * len(self.graph)
        for v in range(len(rank) - 1, -1, -1):
            d = device[v]
            rest = 0.0
            for b, cost in self._steps[v]:
                rest = max(rest, rank[b] + cost[d][device[b]])
            rank[v] = rest + self._seconds[v][d]
        return sorted(range(len(rank)), key=lambda v: (-rank[v], v))

    @functools.cached_property
    def mean_order(self) -> list[int]:
        """The same before anything is placed, by means over devices and pairs of them (HEFT's upward rank)."""
        g, n = self.graph, len(self.devices)
        away = 1 / max(n * (n - 1), 1)
        mean = np.ma.masked_invalid(g.seconds).mean(axis=1).filled(0.0) if len(g) else np.zeros(0)
        rank = np.zeros(len(g))
        for v in range(len(g) - 1, -1, -1):
            rank[v] = mean[v] + max((rank[b] + away * sum(map(sum, c)) for b, c in self._steps[v]), default=0.0)
        return sorted(range(len(g)), key=lambda v: (-rank[v], v))

    def earliest_order(self, device: Sequence[int]) -> list[int]:
        """Always the op that can begin first on its device; of several the one with the longest rest."""
        g, n = self.graph, len(self.devices)
        place = {v: k for k, v in enumerate(self.order(device))}
        missing = [len(x) for x in g.before]
        ready = [v for v in range(len(g)) if not missing[v]]
        free, finish, found = [0.0] * n, [0.0] * len(g), list[int]()
        while ready:

            def begin(v: int) -> float:
                d = device[v]
                arrivals = (finish[u] + cost[device[u]][d] for _, u, cost in self._inputs[v])
                return max([free[d], *arrivals])

            at, _, v = min((begin(v), place[v], v) for v in ready)
            ready.remove(v)
            found.append(v)
            finish[v] = free[device[v]] = at + self._seconds[v][device[v]]
            for b in g.after[v]:
                missing[b] -= 1
                if not missing[b]:
                    ready.append(b)
        return found

    def seconds(self, device: Sequence[int], order: Sequence[int] | None = None) -> float:
        """When all is done, ``inf`` where an op cannot run. ``order``: None for ``order(device)``."""
        n = len(self.devices)
        free, link, finish = [0.0] * n, [0.0] * (n * n), [0.0] * len(self.graph)
        arrived: dict[int, float] = {}
        for v in self.order(device) if order is None else order:
            d = device[v]
            at = free[d]
            for k, u, cost in self._inputs[v]:
                e = device[u]
                if e == d:
                    when = finish[u]
                else:
                    when = arrived.get(k * n + d, -1.0)
                    if when < 0.0:
                        when = link[e * n + d] = arrived[k * n + d] = max(link[e * n + d], finish[u]) + cost[e][d]
                if when > at:
                    at = when
            finish[v] = free[d] = at + self._seconds[v][d]
        return max(finish, default=0.0)

    def timeline(self, device: Sequence[int], order: Sequence[int] | None = None) -> Timeline:
        """The whole run. ``PlanError`` for a placement or an order that is none."""
        g, n = self.graph, len(self.devices)
        device = tuple(int(d) for d in device)
        if len(device) != len(g) or not all(0 <= d < n for d in device):
            raise PlanError(f"a placement of {len(g)} ops has a device of 0 to {n - 1} for each; got {list(device)}")
        taken = tuple(self.order(device) if order is None else (int(v) for v in order))
        seen: set[int] = set()
        for v in taken:
            if v in seen or not 0 <= v < len(g) or not seen.issuperset(g.before[v]):
                raise PlanError(f"op {v} comes before what it reads, twice, or is none: {list(taken)}")
            seen.add(v)
        if len(seen) < len(g):
            raise PlanError(f"the order leaves out {len(g) - len(seen)} ops")
        start, finish = np.zeros(len(g)), np.zeros(len(g))
        free, link = np.zeros(n), np.zeros((n, n))
        sent: dict[tuple[int, int], Transfer] = {}
        for v in taken:
            d = device[v]
            at = free[d]
            for k, u, cost in self._inputs[v]:
                e = device[u]
                when = finish[u]
                if e != d:
                    if (k, d) not in sent:
                        begin = max(link[e, d], finish[u])
                        sent[k, d] = Transfer(k, e, d, float(begin), float(begin + cost[e][d]))
                        link[e, d] = sent[k, d].finish_seconds
                    when = sent[k, d].finish_seconds
                at = max(at, when)
            start[v], finish[v] = at, at + g.seconds[v, d]
            free[d] = finish[v]
        transfers = tuple(sent.values())
        return Timeline(device, taken, start, finish, transfers, self._peaks(device, taken, start, finish, transfers))

    def _peaks(
        self, device: Sequence[int], order: Sequence[int], start: np.ndarray, finish: np.ndarray,
        transfers: Sequence[Transfer],
    ) -> np.ndarray:  # fmt: skip
        g = self.graph
        peaks = g.argument_bytes(device)
        if not len(g):
            return peaks
        # In time, and at the same time in the order of the ops: what ends with one makes room for what the next begins
        # with, and an op that takes no time has its operands there as well.
        place = {v: k for k, v in enumerate(order)}
        begins, ends = (
            [(float(x[v]), 2 * place[v] + more) for v in range(len(g))] for x, more in ((start, 0), (finish, 1))
        )
        leaves: dict[int, tuple[float, int]] = {}
        spans: list[list[tuple[tuple[float, int], tuple[float, int], float]]] = [[] for _ in peaks]
        for x in transfers:
            t = g.tensors[x.tensor]
            leaves[x.tensor] = max(leaves.get(x.tensor, (0.0, 0)), (x.finish_seconds, ends[t.maker][1]))
            readers = [r for r in t.readers if device[r] == x.target]
            asked = min(begins[r][1] for r in readers)
            spans[x.target].append(((x.start_seconds, asked), max(ends[r] for r in readers), t.size_bytes))
        for k, t in enumerate(g.tensors):
            if t.maker >= 0:
                d = device[t.maker]
                last = max([ends[t.maker], leaves.get(k, (0.0, 0)), *(ends[r] for r in t.readers if device[r] == d)])
                spans[d].append((begins[t.maker], (math.inf, 0) if t.is_result else last, t.size_bytes))
        for v, n in enumerate(g.scratch_bytes):
            if n:
                spans[device[v]].append((begins[v], ends[v], float(n)))
        for d, own in enumerate(spans):
            events = sorted([(first, n) for first, _, n in own] + [(last, -n) for _, last, n in own])
            held = most = 0.0
            for _, n in events:
                held += n
                most = max(most, held)
            peaks[d] += most
        return peaks

    def over_bytes(self, device: Sequence[int], order: Sequence[int] | None = None) -> float:
        """By how much memory is exceeded, over all devices; 0 where the placement fits."""
        if not self.is_tight:
            return 0.0
        return float(np.maximum(self.timeline(device, order).peak_bytes - self.limits, 0.0).sum())

    def score(self, device: Sequence[int], order: Sequence[int] | None = None) -> float:
        """Seconds; where memory is exceeded, more than any placement that fits may take, and more the more it is."""
        seconds = self.seconds(device, order)
        over = self.over_bytes(device, order) if np.isfinite(seconds) else 0.0
        return seconds if not over else self._worst * (2.0 + over / self.limits.sum()) + seconds

    @functools.cached_property
    def _worst(self) -> float:
        finite = np.where(self.possible, self.graph.seconds, 0.0)
        return float(finite.max(axis=1, initial=0.0).sum()) + sum(max(map(max, c)) * len(c) for c in self.costs)
