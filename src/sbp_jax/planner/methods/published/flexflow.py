"""FlexFlow: Markov chain Monte Carlo; one random op takes a random choice, kept by the Metropolis criterion.

Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, arXiv:1807.05358,
section 6. Its delta simulation is here the cost of the op and of its edges: all else stays. As in the paper chains
begin at data parallelism (where it is known what the batch is) and at a random plan, and stop where half of the steps
have brought nothing better.
"""

import math

import numpy as np

from ...catalogue import Option, register
from ...costs.cost_graph import IMPOSSIBLE, CostGraph
from ...optimize.presolve import Presolved, without_presolve
from ...optimize.program import Solution, improve
from ...optimize.search import Found
from ...optimize.sweep import sweep
from .. import data_parallel
from ..priced import until_it_fits
from ..restriction import narrow
from ..task import Task
from .decided import SEED

# A chain's temperature: a plan worse by this part of the best is accepted once in e times.
_WORSE = 0.001


@register(
    "flexflow", promises="none",
    paper="Jia, Zaharia, Aiken: Beyond Data and Model Parallelism for DNNs, MLSys 2019, arXiv:1807.05358, section 6",
    options=(Option("steps", 100_000, "random changes tried, over all chains", least=1), SEED),
)  # fmt: skip
def flexflow(task: Task) -> Found | None:
    """The best plan met by the chains; where memory is short, bytes cost more until it fits."""
    starts = [s for s in (_data_parallel(task),) if s is not None]
    steps, seed = task.options["steps"], task.options["seed"]

    def chains(problem: CostGraph) -> Solution | None:
        random = np.random.default_rng(seed)
        r = without_presolve(problem)
        # A random plan may be impossible; with the worst of it removed it is a plan.
        anywhere = improve(r, {n: int(random.integers(len(c))) for n, c in r.nodes.items()})
        begin = [dict(enumerate(s)) for s in starts] + [anywhere]
        found = [_chain(r, dict(b), steps // len(begin) or 1, random) for b in begin]
        choice = min(found, key=lambda x: problem.evaluate([x[n] for n in range(len(x))]))
        ordered = tuple(choice[n] for n in range(len(choice)))
        seconds = problem.evaluate(ordered)
        return None if seconds >= IMPOSSIBLE else Solution(ordered, seconds, 0.0, len(ordered), 0)

    return until_it_fits(task, chains, "flexflow")


def _data_parallel(task: Task) -> tuple[int, ...] | None:
    if not task.roles.known:
        return None
    narrowed = narrow(task.problem, task.footprint, data_parallel.restriction(task))
    found = sweep(narrowed.problem, narrowed.footprint, None)
    return None if found is None else narrowed.choices.widen(found.solution.choice)


def _chain(r: Presolved, choice: dict[int, int], steps: int, random: np.random.Generator) -> dict[int, int]:
    free = [n for n, c in r.nodes.items() if len(c) > 1]
    if not free:
        return choice
    now = best = r.value(choice)
    best_choice, last = dict(choice), 0
    nodes, parts, luck = random.integers(len(free), size=steps), random.random(steps), random.random(steps)
    for step in range(steps):
        n = free[nodes[step]]
        k = int(parts[step] * len(r.nodes[n]))
        was = choice[n]
        more = float(r.nodes[n][k] - r.nodes[n][was])
        for a in r.around[n]:
            m = r.matrix(n, a)
            more += float(m[k, choice[a]] - m[was, choice[a]])
        if more <= 0 or luck[step] < math.exp(-more / (_WORSE * best + 1e-300)):
            choice[n], now = k, now + more
            if now < best * (1 - 1e-12):
                best, best_choice, last = now, dict(choice), step
        if step - last > steps // 2:
            break
    return best_choice
