"""Auto-MAP: deep Q-learning of which signature each argument gets; the rest follows by propagation.

Wang et al., "Auto-MAP: A DQN Framework for Exploring Distributed Execution Plans for DNN Workloads", arXiv:2007.04069,
section 4: states are the decisions so far, actions the next argument's signature, the reward comes with the whole plan;
a network learns the value of actions from replayed episodes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ...catalogue import Option, register
from ...costs.cost_graph import IMPOSSIBLE
from ...optimize.search import Found
from ..task import Task
from .argument_pins import pinnable
from .decided import FILL, SEED, filled, propagate

_HIDDEN, _BATCH, _RATE = 32, 64, 0.03
# An action is random at first, and at last so often.
_LEAST_RANDOM = 0.05
_WAYS = 6


@register(
    "auto_map", decides="where the largest arguments lie", promises="none", leaves_open=True,
    paper="Wang et al.: Auto-MAP: A DQN Framework for Exploring Distributed Execution Plans, arXiv:2007.04069, "
    "section 4",
    options=(
        Option("episodes", 120, "plans tried while learning", least=1),
        Option("arguments", 10, "arguments that are decided, the largest ones", least=1),
        SEED, FILL,
    ),
)  # fmt: skip
def auto_map(task: Task) -> Found | None:
    """The best plan with the arguments of the best episode."""
    among = pinnable(task, task.options["arguments"], _WAYS, "auto_map")
    free = task.problem.evaluate(propagate(task.problem, {}))
    if not among:
        return filled(task, {}, "auto_map", ["no argument has a choice"])
    random = np.random.default_rng(task.options["seed"])
    size = len(among) * _WAYS
    network = _network(size + len(among), task.options["seed"])
    replay: list[tuple[np.ndarray, int, float]] = []
    best, best_pins = np.inf, dict[int, int]()
    episodes = task.options["episodes"]
    for episode in range(episodes):
        if task.budget.over and episode:
            break
        epsilon = max(_LEAST_RANDOM, 1.0 - 1.5 * episode / episodes)
        state, steps, pins = np.zeros(size + len(among), np.float32), [], dict[int, int]()
        for at, x in enumerate(among):
            state[size + at] = 1.0
            values = np.asarray(_values(network, state[None])[0])[: len(x.choices)]
            action = int(random.integers(len(x.choices))) if random.random() < epsilon else int(values.argmax())
            steps.append((state.copy(), action))
            state[size + at], state[at * _WAYS + action] = 0.0, 1.0
            pins[x.node] = x.choices[action]
        seconds = task.problem.evaluate(propagate(task.problem, pins))
        reward = -1.0 if seconds >= IMPOSSIBLE else float(np.clip(np.log(free / max(seconds, 1e-300)), -1.0, 1.0))
        replay += [(s, a, reward) for s, a in steps]  # undiscounted: each action's value is the plan's
        if seconds < best:
            best, best_pins = seconds, pins
        chosen = random.integers(len(replay), size=_BATCH)
        network = _learn(
            network, np.stack([replay[k][0] for k in chosen]), np.array([replay[k][1] for k in chosen]),
            np.array([replay[k][2] for k in chosen], np.float32),
        )  # fmt: skip
    return filled(task, best_pins, "auto_map", [f"{len(best_pins)} arguments decided in {len(replay)} steps"])


Network = tuple[tuple[jax.Array, jax.Array], ...]


def _network(size: int, seed: int) -> Network:
    keys = jax.random.split(jax.random.key(seed), 2)
    widths = ((size, _HIDDEN), (_HIDDEN, _WAYS))
    return tuple((jax.random.normal(k, w) / np.sqrt(w[0]), jnp.zeros(w[1])) for k, w in zip(keys, widths, strict=True))


@jax.jit
def _values(network: Network, states: jax.Array) -> jax.Array:
    """(n, actions): what each action is worth in each of the states (n, size)."""
    (a, b), (c, d) = network
    return jax.nn.relu(states @ a + b) @ c + d


@jax.jit
def _learn(network: Network, states: jax.Array, actions: jax.Array, rewards: jax.Array) -> Network:
    """One step down the gradient of the squared error of the actions' values."""

    def error(network: Network) -> jax.Array:
        return jnp.mean((_values(network, states)[jnp.arange(len(actions)), actions] - rewards) ** 2)

    return jax.tree.map(lambda w, g: w - _RATE * g, network, jax.grad(error)(network))
