"""Learned placement: networks that draw actions, trained by REINFORCE or PPO on simulated seconds, from fixed seeds.

A network is a Flax module of ``(features, given, noise) -> (actions, log-probability, entropy)``. ``noise`` (actions,
choices) is added to its logits before the largest is taken: Gumbel noise draws from the policy, none takes its first
choice. ``given`` actions of 0 or more are taken instead. What actions stand for is said by a ``Judge``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import PlanError
from ..catalogue import Option
from .devices import Devices
from .features import Features, features
from .graph import OpGraph
from .simulate import Simulator
from .task import SEED, Placing, PlacingTask, finished

STEPS = Option("steps", 200, "updates of the policy", least=1)
SAMPLES = Option("samples", 16, "placements drawn for an update", least=2)
OPTIONS = (STEPS, SAMPLES, SEED)

_RATE, _ENTROPY, _GRADIENT = 2e-3, 1.0, 1.0
_CLIP, _EPOCHS = 0.2, 3


def linen() -> Any:
    """``flax.linen``; ``PlanError`` where Flax or Optax is missing."""
    try:
        import flax.linen
        import optax  # noqa: F401
    except ModuleNotFoundError as error:
        raise PlanError(
            f"learned solvers need {error.name}, which is not installed: pip install 'sbp-jax[flax]'"
        ) from None
    return flax.linen


def choose(logits: jax.Array, noise: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(..., choices) to actions, their log-probabilities and the entropies."""
    logs = jax.nn.log_softmax(logits)
    action = jnp.where(given >= 0, given, jnp.argmax(logits + noise, axis=-1))
    entropy = -(jnp.exp(logs) * logs).sum(axis=-1)
    return action, jnp.take_along_axis(logs, action[..., None], axis=-1)[..., 0], entropy


def masked(logits: jax.Array, possible: jax.typing.ArrayLike) -> jax.Array:
    """Logits that leave out what cannot be."""
    return jnp.where(possible, logits, -1e9)


class Judged(NamedTuple):
    """What actions stand for: a placement, its order where actions say one, and its score (``Simulator.score``)."""

    score: float
    device: list[int]
    order: list[int] | None = None


Judge = Callable[[Simulator, np.ndarray], Judged]


def as_devices(s: Simulator, actions: np.ndarray) -> list[int]:
    """An action for each op: its device, or the fastest possible one."""
    return [int(d) if s.possible[v, d] else int(np.nanargmin(np.where(s.possible[v], s.graph.seconds[v], np.nan)))
            for v, d in enumerate(actions[: len(s.graph)])]  # fmt: skip


def judged_devices(s: Simulator, actions: np.ndarray) -> Judged:
    """``as_devices`` with its score."""
    device = as_devices(s, actions)
    return Judged(s.score(device), device)


@dataclass(frozen=True, eq=False)
class Policy:
    """A trained network, for graphs on the devices that it was trained for.

    Attributes:
        name: the method that trained it.
        devices: where it places ops.
        best: by graph that it was trained on the best placement that was drawn.
        final: what judges its actions when it places; that may search longer than the judge of its training.
    """

    name: str
    network: Any
    parameters: Any
    devices: Devices
    final: Judge
    best: tuple[Judged, ...] = ()

    def place(self, graph: OpGraph, samples: int = 16, seed: int = 0) -> Placing:
        """The best, in the simulator, of the policy's first choice and ``samples - 1`` draws.

        The graph may be one never seen; nothing is learned of it. ``PlanError`` for one of another number of devices,
        for fewer than 1 sample, and where no placement was found that fits in memory.
        """
        if samples < 1:
            raise PlanError(f"samples={samples}: a policy draws at least 1 placement, its first choice")
        task = PlacingTask(graph, self.devices)
        if not len(graph):
            return finished(task, [])
        tried = self.drawn(task.simulator, samples, seed)
        # Another order may turn two placements round.
        ends = [finished(task, x.device, x.order) for x in (min(tried, key=_score), tried[0])]
        return min(ends, key=lambda x: x.seconds)

    def drawn(self, s: Simulator, samples: int, seed: int) -> list[Judged]:
        """The first choice, then draws."""
        x = features(s, _padded(len(s.graph)))
        noise = _gumbel(np.random.default_rng(seed), self.network, x, samples)
        noise[0] = 0.0
        return [self.final(s, a) for a in _functions(self.network)[0](self.parameters, x, noise)]


def train(
    name: str, network: Any, graphs: Sequence[OpGraph], devices: Devices, *, steps: int = 200, samples: int = 16,
    seed: int = 0, judge: Judge = judged_devices, final: Judge | None = None, proximal: bool = False,
) -> Policy:  # fmt: skip
    """A policy trained on graphs, one after the other, by ``steps`` updates in all.

    The reward is minus the logarithm of a placement's score; the baseline is the mean of those drawn together.
    ``proximal``: PPO (Schulman et al., arXiv:1707.06347), several updates of the clipped objective with one set of
    draws; else REINFORCE. ``PlanError`` without graphs with ops, for no steps, and for fewer than 2 samples.
    """
    graphs = [g for g in graphs if len(g)]
    if not graphs or steps < 1 or samples < 2:
        raise PlanError(
            f"{name!r} is trained on at least 1 graph with ops, by at least 1 step of at least 2 samples; got "
            f"{len(graphs)} graphs, {steps=}, {samples=}"
        )
    simulators = [Simulator(g, devices) for g in graphs]
    size = _padded(max(map(len, graphs)))
    seen = [features(s, size) for s in simulators]
    draw, update = _functions(network)
    random = np.random.default_rng(seed)
    state = _start(network, seen[0], random)
    best = [Judged(np.inf, []) for _ in graphs]
    for step in range(steps):
        k = step % len(graphs)
        actions = draw(state[0], seen[k], _gumbel(random, network, seen[k], samples))
        found = [judge(simulators[k], a) for a in actions]
        best[k] = min(best[k], *found, key=_score)
        rewards = -np.log(np.maximum([x.score for x in found], 1e-12))
        weights = ((rewards - rewards.mean()) / (float(rewards.std()) + 1e-3)).astype(np.float32)
        entropy = _ENTROPY * (1 - step / steps)
        state = update(state, seen[k], actions, weights, np.float32(entropy), proximal)
    return Policy(name, network, state[0], devices, final or judge, tuple(best))


def learned(
    task: PlacingTask, name: str, network: Any, judge: Judge = judged_devices, *, final: Judge | None = None,
    proximal: bool = False, graph: OpGraph | None = None,
) -> Placing:  # fmt: skip
    """A policy trained on the task's own graph: the best placement that it met, then or with what it has learned.

    ``graph``: what it is trained on instead; ``judge`` then gives placements of the task's graph.
    """
    if not len(task.graph):
        return finished(task, [])
    o = task.options
    graph = graph or task.graph
    policy = train(name, network, [graph], task.devices, steps=o["steps"], samples=o["samples"], seed=o["seed"],
                   judge=judge, final=final, proximal=proximal)  # fmt: skip
    found = min([policy.best[0], *policy.drawn(Simulator(graph, task.devices), o["samples"], o["seed"])], key=_score)
    return finished(task, found.device, found.order)


def _score(x: Judged) -> float:
    return x.score


_KNOWN: dict[Any, tuple[Any, Any]] = {}
# Networks are small and run a few thousand times: less is spent on compiling them.
_COMPILING = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}


def _padded(ops: int) -> int:
    """A size that many graphs have, so that a network is compiled for few."""
    return -(-ops // 8) * 8


def _gumbel(random: np.random.Generator, network: Any, x: Features, samples: int) -> np.ndarray:
    return random.gumbel(size=(samples, *network.actions(x))).astype(np.float32)


def _optimizer() -> Any:
    import optax

    return optax.chain(optax.clip_by_global_norm(_GRADIENT), optax.adam(_RATE))


def _start(network: Any, x: Features, random: np.random.Generator) -> Any:
    """Parameters to begin with, as LeCun proposes: kernels normal by the square root of their inputs; and moments."""
    count, choices = network.actions(x)
    key = jax.random.key(0)  # only the shapes are of interest
    shapes = jax.eval_shape(network.init, key, x, np.full((count,), -1), np.zeros((count, choices), np.float32))

    def first(path: Any, leaf: Any) -> np.ndarray:
        if path[-1].key == "scale":
            return np.ones(leaf.shape, np.float32)
        if len(leaf.shape) < 2:
            return np.zeros(leaf.shape, np.float32)
        inputs = leaf.shape[0] if path[-2].key != "out" else leaf.shape[0] * leaf.shape[1]
        return (random.normal(size=leaf.shape) / np.sqrt(inputs)).astype(np.float32)

    parameters = jax.tree_util.tree_map_with_path(first, shapes)
    return parameters, _optimizer().init(parameters)


def _functions(network: Any) -> tuple[Any, Any]:
    """Of a network: draw actions, update its parameters. Compiled once for each size of graph."""
    if network in _KNOWN:
        return _KNOWN[network]
    import optax

    optimizer = _optimizer()

    def draw(parameters: Any, x: Features, noise: jax.Array) -> jax.Array:
        free = jnp.full((noise.shape[1],), -1)
        return jax.vmap(lambda z: network.apply(parameters, x, free, z)[0])(noise)

    def odds(parameters: Any, x: Features, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        still = jnp.zeros(network.actions(x))
        _, logs, entropy = jax.vmap(lambda a: network.apply(parameters, x, a, still))(actions)
        return logs, entropy.mean()

    def update(
        state: Any, x: Features, actions: jax.Array, weights: jax.Array, entropy: jax.Array, proximal: bool
    ) -> Any:
        parameters, moments = state
        before = odds(parameters, x, actions)[0]

        def loss(parameters: Any) -> jax.Array:
            logs, spread = odds(parameters, x, actions)
            if proximal:
                ratio = jnp.exp(logs - before)
                gain = jnp.minimum(ratio * weights, jnp.clip(ratio, 1 - _CLIP, 1 + _CLIP) * weights)
            else:
                gain = logs * weights
            return -gain.mean() - entropy * spread

        def one(state: Any, _: None) -> tuple[Any, None]:
            parameters, moments = state
            steps, moments = optimizer.update(jax.grad(loss)(parameters), moments, parameters)
            return (optax.apply_updates(parameters, steps), moments), None

        return jax.lax.scan(one, (parameters, moments), None, length=_EPOCHS if proximal else 1)[0]

    drawn = jax.jit(draw, compiler_options=_COMPILING)
    updated = jax.jit(update, static_argnums=5, compiler_options=_COMPILING)

    def as_numpy(*given: Any) -> np.ndarray:
        return np.asarray(drawn(*given))

    return _KNOWN.setdefault(network, (as_numpy, updated))
