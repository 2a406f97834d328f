"""Learned placement: networks that draw actions, trained by REINFORCE or PPO on simulated seconds, from fixed seeds.

A network is a Flax module of ``(features, given, noise) -> (actions, log-probability, entropy)``. ``noise`` (actions,
choices) is added to its logits before the largest is taken: Gumbel noise draws from the policy, none takes its first
choice. ``given`` actions of 0 or more are taken instead. What actions mean for ops is said by ``decode``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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

Decode = Callable[[Simulator, np.ndarray], list[int]]

_RATE, _ENTROPY, _GRADIENT = 5e-3, 0.03, 1.0
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


def as_devices(s: Simulator, actions: np.ndarray) -> list[int]:
    """An action for each op: its device, or the fastest possible one."""
    return [int(d) if s.possible[v, d] else int(np.nanargmin(np.where(s.possible[v], s.graph.seconds[v], np.nan)))
            for v, d in enumerate(actions[: len(s.graph)])]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Policy:
    """A trained network. ``best``: by graph it was trained on the best placement that was drawn, and its score."""

    network: Any
    parameters: Any
    decode: Decode
    devices: int
    best: tuple[tuple[list[int], float], ...] = ()

    def place(self, graph: OpGraph, devices: Devices, samples: int = 16, seed: int = 0) -> Placing:
        """The best, in the simulator, of the policy's first choice and some draws. The graph may be one never seen.

        ``PlanError`` for another number of devices than it was trained for.
        """
        if len(devices) != self.devices:
            raise PlanError(f"the policy was trained for {self.devices} devices, and there are {len(devices)}")
        task = PlacingTask(graph, devices)
        return finished(task, min(self.drawn(task.simulator, samples, seed), key=task.simulator.score))

    def drawn(self, s: Simulator, samples: int, seed: int) -> list[list[int]]:
        """The first choice, then draws."""
        x = features(s, _padded(len(s.graph)))
        random = np.random.default_rng(seed)
        noise = _gumbel(random, self.network, x, max(samples, 1))
        noise[0] = 0.0
        draw, _ = _functions(self.network)
        found = [self.decode(s, a) for a in draw(self.parameters, x, noise)]
        if samples:
            more = _gumbel(random, self.network, x, samples)
            found += [self.decode(s, a) for a in draw(self.parameters, x, more)]
        return found


def train(
    network: Any, graphs: Sequence[OpGraph], devices: Devices, *, steps: int = 200, samples: int = 16, seed: int = 0,
    decode: Decode = as_devices, proximal: bool = False,
) -> Policy:  # fmt: skip
    """A policy trained on graphs, one after the other, so many updates in all.

    The reward is minus the logarithm of a placement's score; the baseline is the mean of those drawn together.
    ``proximal``: PPO (Schulman et al., arXiv:1707.06347), several updates of the clipped objective with one set of
    draws; else REINFORCE.
    """
    if not graphs or steps < 1 or samples < 2:
        raise PlanError(
            f"a policy needs graphs, steps and samples: got {len(graphs)} graphs, {steps=}, {samples=} (least 2)"
        )
    simulators = [Simulator(g, devices) for g in graphs]
    size = _padded(max(map(len, graphs)))
    seen = [features(s, size) for s in simulators]
    draw, update = _functions(network)
    random = np.random.default_rng(seed)
    state = _start(network, seen[0], random)
    best: list[tuple[list[int], float]] = [([], np.inf) for _ in graphs]
    for step in range(steps):
        k = step % len(graphs)
        actions = draw(state[0], seen[k], _gumbel(random, network, seen[k], samples))
        scores = []
        for a in actions:
            device = decode(simulators[k], a)
            scores.append(simulators[k].score(device))
            if scores[-1] < best[k][1]:
                best[k] = device, scores[-1]
        rewards = -np.log(np.maximum(scores, 1e-12))
        spread = float(rewards.std())
        weights = ((rewards - rewards.mean()) / (spread + 1e-3)).astype(np.float32)
        entropy = _ENTROPY * (1 - step / steps)
        state = update(state, seen[k], actions, weights, np.float32(entropy), proximal)
    return Policy(network, state[0], decode, len(devices), tuple(best))


def learned(task: PlacingTask, network: Any, decode: Decode = as_devices, proximal: bool = False) -> Placing:
    """A policy trained on the task's own graph: the best placement that it met."""
    o = task.options
    policy = train(network, [task.graph], task.devices, steps=o["steps"], samples=o["samples"], seed=o["seed"],
                   decode=decode, proximal=proximal)  # fmt: skip
    tried = [policy.best[0][0], *policy.drawn(task.simulator, 0, o["seed"])]
    return finished(task, min(tried, key=task.simulator.score))


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
