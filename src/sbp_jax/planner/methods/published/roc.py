"""ROC: what ops take is learned by linear regression from some that were measured; then dynamic programming.

Jia, Lin, Gao, Zaharia and Aiken, "Improving the Accuracy, Scalability, and Performance of Graph Neural Networks with
ROC", MLSys 2020, sections 4 and 5. Measured is here a sample of the cost model's own seconds, regressed on what a
device computes, reads and writes, and starts; what moves between devices is known from its bytes, as there. The plan is
judged by the cost model's seconds, so that the table shows what the regression costs.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from ....errors import PlanError
from ...catalogue import Option, register
from ...costs.cost_graph import IMPOSSIBLE, CostGraph
from ...optimize.program import Solution
from ...optimize.search import Found
from ..dp import eliminate
from ..priced import until_it_fits
from ..task import Task
from .decided import SEED


@register(
    "roc", decides="the signature of every value, by seconds that are learned", promises="none",
    paper="Jia et al.: Improving the Accuracy, Scalability, and Performance of Graph Neural Networks with ROC, MLSys "
    "2020, sections 4 and 5",
    options=(Option("samples", 200, "ops and choices that are measured", least=1), SEED),
)  # fmt: skip
def roc(task: Task) -> Found | None:
    """The best plan by learned seconds; where memory is short, bytes cost more until it fits."""
    learned, error = _learned(task)

    def method(problem: CostGraph) -> Solution | None:
        prices = zip(problem.nodes, task.problem.nodes, learned, strict=True)
        known = replace(problem, nodes=[asked - true + guess for asked, true, guess in prices])
        found = eliminate(known)
        return found and replace(found, objective=problem.evaluate(found.choice), bound=0.0)

    found = until_it_fits(task, method, "roc")
    note = f"seconds learned from {task.options['samples']} ops: off by {error:.0%} of all seconds"
    return found and replace(found, notes=(note,))


def _learned(task: Task) -> tuple[list[np.ndarray], float]:
    """By node and choice the seconds as they are predicted, and how far these are off, as a part of all."""
    amounts = task.find_features()
    if not amounts:
        raise PlanError("solver='roc' learns seconds from what ops do, and this problem has costs only; use 'ilp'")
    true = np.concatenate(task.problem.nodes)
    given = np.stack([np.concatenate(feature.nodes) for feature in amounts], axis=1)
    possible = np.flatnonzero(true < IMPOSSIBLE / 2)
    random = np.random.default_rng(task.options["seed"])
    sample = random.choice(possible, size=min(task.options["samples"], len(possible)), replace=False)
    scale = np.maximum(given[sample].max(axis=0, initial=0.0), 1e-300)
    weights = nnls(given[sample] / scale, true[sample])[0]
    guess = np.where(true < IMPOSSIBLE / 2, given / scale @ weights, true)
    error = float(np.abs(guess - true)[possible].sum() / max(true[possible].sum(), 1e-300))
    return np.split(guess, np.cumsum([len(c) for c in task.problem.nodes])[:-1]), error
