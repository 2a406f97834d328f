"""Pesto: the best placement and order at once, proven.

Hafeez, Sun, Gandhi and Liu, "Towards Optimal Placement and Scheduling of DNN Operations with Pesto", Middleware 2021:
an integer program for where and when each op runs, links that send one tensor at a time, memory. Here the
same decisions are searched by branch and bound. A branch adds an op, on a device, to those taken, by ascending start.
It is cut by what any rest needs: chains of ops with their transfers, and the work left, shared among devices at prices
that a linear program sets; and by an earlier branch with the same ops done that is nowhere later.
"""

import numpy as np
from scipy.optimize import linprog

from ...errors import PlanError
from ..catalogue import Option, register
from .heft import heft
from .simulate import Simulator
from .task import Placing, PlacingTask, best_order

_SAME = 1e-9
_KEPT = 12


@register(
    "pesto", family="placing", promises="exact",
    paper="Hafeez, Sun, Gandhi, Liu: Towards Optimal Placement and Scheduling of DNN Operations with Pesto, Middleware "
    "2021",
    options=(
        Option("most_ops", 14, "larger graphs are refused", least=1),
        Option("nodes", 300_000, "branches looked at; where they do not suffice the answer has a bound", least=1),
    ),
)  # fmt: skip
def pesto(task: PlacingTask) -> Placing:
    """The best placement and order; ``PlanError`` for graphs of more than ``most_ops`` ops."""
    most = task.options["most_ops"]
    if len(task.graph) > most:
        raise PlanError(
            f"solver 'pesto' tries all placements and orders and is meant for graphs of up to {most} ops; this one "
            f"has {len(task.graph)}. Merge more of them (ops={most}), raise solver_options={{'most_ops': ...}}, or "
            "use 'heft'"
        )
    search = _Search(task.simulator, task.options["nodes"])
    search.begin_with(task)
    search.branch(0, [0.0] * len(task.devices), [0.0] * len(task.devices) ** 2, 0.0)
    is_proven = search.left > 0
    if search.device is None:
        told = "there is no" if is_proven else f"{task.options['nodes']} branches (solver_options 'nodes') met no"
        raise PlanError(f"{told} placement of these ops that fits in memory: add devices, or memory_bytes")
    notes = () if is_proven else (f"not proven to be the best: {task.options['nodes']} branches did not suffice",)
    return Placing(search.device, search.order, search.best, search.best if is_proven else search.root_bound, notes)


class _Search:
    def __init__(self, s: Simulator, nodes: int) -> None:
        g = s.graph
        self.s, self.g, self.n, self.left = s, g, len(s.devices), nodes
        self.seconds = g.seconds.tolist()
        self.where = [np.flatnonzero(row).tolist() for row in s.possible]
        self.inputs = [[(k, g.tensors[k].maker, s.costs[k]) for k in ks] for ks in g.reads]
        self.best, self.device, self.order = float("inf"), None, ()
        self.root_bound = 0.0
        self.placed, self.finish = [-1] * len(g), [0.0] * len(g)
        self.arrived: dict[tuple[int, int], float] = {}
        self.taken: list[int] = []
        self.known: dict[object, list[tuple[float, ...]]] = {}
        self.prices = _prices(g.seconds)
        finite = np.where(s.possible, g.seconds, 0.0)
        self.priced = [np.where(s.possible, finite * w, np.inf).min(axis=1).tolist() for w in self.prices]
        self.arguments = [[k for k, t in enumerate(g.tensors) if t.maker < 0 and v in t.readers] for v in range(len(g))]
        self.makes = [[k for k, t in enumerate(g.tensors) if t.maker == v] for v in range(len(g))]

    def begin_with(self, task: PlacingTask) -> None:
        """An answer to compare with: HEFT's, then single ops moved while that is better."""
        try:
            device = list(heft(task).device)
        except PlanError:
            return  # does not fit; the search may find one that does
        best = self.s.score(device)
        again = True
        while again:
            again = False
            for v in range(len(device)):
                for d in self.where[v]:
                    tried = [*device[:v], d, *device[v + 1 :]]
                    score = self.s.score(tried)
                    if score < best * (1 - _SAME):
                        best, device, again = score, tried, True
        order = best_order(self.s, device, [])
        if not self.s.over_bytes(device, order):
            self.best = self.s.seconds(device, order)
            self.device, self.order = tuple(device), tuple(order)

    def branch(self, done: int, free: list[float], link: list[float], last: float) -> None:
        """All that may follow the ops ``done`` (a bit for each); ``last`` is when the last of them began."""
        self.left -= 1
        g, n = self.g, self.n
        if len(self.taken) == len(g):
            end = max(self.finish, default=0.0)
            if end < self.best and not self.s.over_bytes(self.placed, self.taken):
                self.best, self.device, self.order = end, tuple(self.placed), tuple(self.taken)
            return
        bound, starts = self.bound(done, free, link, last)
        if not self.taken:
            self.root_bound = min(bound, self.best)
        if bound >= self.best * (1 - _SAME) or self.left <= 0 or self.is_dominated(done, free, link, last):
            return
        children = []
        for v in range(len(g)):
            if not done >> v & 1 and all(done >> u & 1 for u in g.before[v]):
                for d in self.where[v]:
                    begin = starts[v][d]
                    if self.s.is_tight and not self.has_room(v, d):
                        continue
                    if self.exact_start(v, d, free, link) >= last * (1 - _SAME):
                        children.append((begin + self.seconds[v][d], begin, v, d))
        for _, _, v, d in sorted(children):
            if self.left <= 0:
                return
            new_link, sent, at = link, [], free[d]
            for k, u, cost in self.inputs[v]:
                e = self.placed[u]
                when = self.finish[u]
                if e != d:
                    when = self.arrived.get((k, d), -1.0)
                    if when < 0.0:
                        if new_link is link:
                            new_link = list(link)
                        when = max(new_link[e * n + d], self.finish[u]) + cost[e][d]
                        new_link[e * n + d] = self.arrived[k, d] = when
                        sent.append((k, d))
                at = max(at, when)
            self.placed[v], self.finish[v] = d, at + self.seconds[v][d]
            self.taken.append(v)
            self.branch(done | 1 << v, [*free[:d], self.finish[v], *free[d + 1 :]], new_link, at)
            self.taken.pop()
            self.placed[v], self.finish[v] = -1, 0.0
            for key in sent:
                del self.arrived[key]

    def has_room(self, v: int, d: int) -> bool:
        """Whether a device's arguments, with an op's own and what it reads and makes, are within its memory.

        So are the results that it holds to the end.
        """
        tensors, own = self.g.tensors, [u for u in self.taken if self.placed[u] == d]
        held = {k for u in (*own, v) for k in self.arguments[u]} | {*self.g.reads[v], *self.makes[v]}
        held |= {k for u in own for k in self.makes[u] if tensors[k].is_result}
        return sum([tensors[k].size_bytes for k in held]) + float(self.g.scratch_bytes[v]) <= self.s.limits[d]

    def exact_start(self, v: int, d: int, free: list[float], link: list[float]) -> float:
        """When an op would begin that is taken next."""
        at, used = free[d], dict[int, float]()
        for k, u, cost in self.inputs[v]:
            e = self.placed[u]
            when = self.finish[u] if e == d else self.arrived.get((k, d), -1.0)
            if when < 0.0:
                when = used[e] = max(used.get(e, link[e * self.n + d]), self.finish[u]) + cost[e][d]
            at = max(at, when)
        return at

    def bound(
        self, done: int, free: list[float], link: list[float], last: float
    ) -> tuple[float, dict[int, list[float]]]:  # fmt: skip
        """No schedule that goes on from here ends before; and by op and device the earliest start."""
        n, placed, finish, arrived = self.n, self.placed, self.finish, self.arrived
        found = max(finish, default=0.0)
        starts: dict[int, list[float]] = {}
        ends: dict[int, list[float]] = {}
        for v in range(len(self.g)):
            if done >> v & 1:
                continue
            start = [max(last, f) for f in free]
            for k, u, cost in self.inputs[v]:
                e = placed[u]
                for d in range(n):
                    if e < 0:
                        when = min([x + c[d] for x, c in zip(ends[u], cost, strict=True)])
                    elif e == d:
                        when = finish[u]
                    else:
                        when = arrived.get((k, d), -1.0)
                        if when < 0.0:
                            when = max(link[e * n + d], finish[u]) + cost[e][d]
                    if when > start[d]:
                        start[d] = when
            starts[v] = start
            ends[v] = [a + b for a, b in zip(start, self.seconds[v], strict=True)]
            found = max(found, min(ends[v]))
        for w, priced in zip(self.prices, self.priced, strict=True):
            work = sum([x * max(last, f) for x, f in zip(w, free, strict=True)]) + sum([priced[v] for v in starts])
            found = max(found, work)
        return found, starts

    def is_dominated(self, done: int, free: list[float], link: list[float], last: float) -> bool:
        """Whether a branch with the same ops done, and what is read of them in the same places, was nowhere later."""
        if self.s.is_tight:
            return False
        open_tensors = [
            k for v in self.taken for k in self.makes[v] if any(not done >> r & 1 for r in self.g.tensors[k].readers)
        ]
        open_tensors.sort()
        makers = tuple((k, self.placed[self.g.tensors[k].maker]) for k in open_tensors)
        state = [*free, *link, last, max(self.finish)]
        for k in open_tensors:
            state.append(self.finish[self.g.tensors[k].maker])
            state += [self.arrived.get((k, d), float("inf")) for d in range(self.n)]
        kept = self.known.setdefault((done, makers), [])
        for other in kept:
            if all([a <= b for a, b in zip(other, state, strict=True)]):
                return True
        if len(kept) < _KEPT:
            kept.append(tuple(state))
        return False


def _prices(seconds: np.ndarray) -> list[list[float]]:
    """Weights of devices, 1 in all: by any of them the weighted work is no more than the time that all take.

    One is the dual of sharing out all ops with fractions; the others weigh the devices alike, or one alone.
    """
    ops, n = seconds.shape
    found = [[1.0 / n] * n, *(np.eye(n)[d].tolist() for d in range(n))]
    if ops and n > 1:
        finite = np.isfinite(seconds)
        scale = float(seconds[finite].max()) or 1.0
        # Minimise T with shares x >= 0: the shares of an op add up to 1, a device's work is at most T.
        cost = np.zeros(ops * n + 1)
        cost[-1] = 1.0
        rows = np.zeros((n, ops * n + 1))
        for d in range(n):
            rows[d, d : ops * n : n] = np.where(finite[:, d], seconds[:, d], 0.0) / scale
            rows[d, -1] = -1.0
        ones = np.zeros((ops, ops * n + 1))
        for v in range(ops):
            ones[v, v * n : (v + 1) * n] = 1.0
        limits = [(0.0, 1.0 if yes else 0.0) for yes in finite.ravel()] + [(0.0, None)]
        answer = linprog(cost, A_ub=rows, b_ub=np.zeros(n), A_eq=ones, b_eq=np.ones(ops), bounds=limits)
        if answer.success:
            w = np.maximum(-answer.ineqlin.marginals, 0.0)
            if w.sum() > 0:
                found.insert(0, (w / w.sum()).tolist())
    return found
