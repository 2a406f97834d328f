"""AutoMap: Monte-Carlo tree search over a few pins of arguments; the rest follows by propagation.

Schaarschmidt et al., "Automap: Towards Ergonomic Automated Parallelism for ML Models", arXiv:2112.02958, section 3: an
episode pins arguments one after the other, rewrites propagate what was pinned, the cost model judges the end of it.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from ...catalogue import Option, register
from ...costs.cost_graph import IMPOSSIBLE
from ...optimize.search import Found
from ..task import Task
from .argument_pins import pinnable
from .decided import FILL, SEED, filled, propagate

# Weight of what was seldom tried (upper confidence bounds for trees, Kocsis and Szepesvari 2006).
_EXPLORE = 0.5
# Signatures that an argument may be pinned to.
_WAYS = 12


@dataclass(slots=True)
class _Seen:
    visits: int = 0
    total: float = 0.0
    after: dict[tuple[int, int], "_Seen"] = field(default_factory=dict)


@register(
    "automap", decides="where a few arguments lie", promises="none", leaves_open=True,
    paper="Schaarschmidt et al.: Automap: Towards Ergonomic Automated Parallelism for ML Models, arXiv:2112.02958, "
    "section 3",
    options=(
        Option("episodes", 80, "plans tried", least=1),
        Option("pins", 6, "arguments that a plan pins at most", least=1),
        Option("arguments", 16, "arguments that may be pinned, the largest ones", least=1),
        SEED, FILL,
    ),
)  # fmt: skip
def automap(task: Task) -> Found | None:
    """The best plan with the pins of the best episode."""
    among = pinnable(task, task.options["arguments"], _WAYS, "automap")
    random = np.random.default_rng(task.options["seed"])
    root = _Seen()
    free = task.problem.evaluate(propagate(task.problem, {}))
    best, best_pins = free, dict[int, int]()
    for episode in range(task.options["episodes"]):
        if task.budget.over and episode:
            break
        node, path, pins = root, [root], dict[int, int]()
        while len(pins) < task.options["pins"]:
            # To stop is an action too, (-1, -1): a plan needs no more pins than help.
            actions = [(-1, -1), *((x.node, k) for x in among if x.node not in pins for k in x.choices)]
            fresh = [a for a in actions if a not in node.after]
            if fresh:
                action = fresh[int(random.integers(len(fresh)))]
            else:
                action = max(actions, key=lambda a: _score(node, node.after[a]))
            node = node.after.setdefault(action, _Seen())
            path.append(node)
            if action[0] < 0:
                break
            pins[action[0]] = action[1]
            if fresh:
                break
        seconds = task.problem.evaluate(propagate(task.problem, pins))
        reward = 0.0 if seconds >= IMPOSSIBLE else min(free, IMPOSSIBLE) / max(seconds, 1e-300)
        for seen in path:
            seen.visits += 1
            seen.total += min(reward, 2.0)
        if seconds < best:
            best, best_pins = seconds, pins
    named = ", ".join(x.label for x in among if x.node in best_pins) or "nothing"
    return filled(task, best_pins, "automap", [f"pinned: {named}"])


def _score(parent: _Seen, child: _Seen) -> float:
    return child.total / child.visits + _EXPLORE * math.sqrt(math.log(parent.visits + 1) / child.visits)
