"""What every method should be better than: all ops on one device; devices by chance."""

import numpy as np

from ..catalogue import Option, register
from .task import SEED, Placing, PlacingTask, finished


@register("one_device", family="placing", promises="none")
def one_device(task: PlacingTask) -> Placing:
    """All ops on the device that is done first; ops that cannot run there go where they take least."""
    s, seconds = task.simulator, task.graph.seconds
    tried = [np.where(s.possible[:, d], d, seconds.argmin(axis=1)).tolist() for d in range(len(task.devices))]
    return finished(task, min(tried, key=s.score))


@register(
    "random", family="placing", promises="none",
    options=(Option("tries", 1, "placements drawn, of which the best counts", least=1), SEED),
)  # fmt: skip
def random(task: PlacingTask) -> Placing:
    """Every op on a device by chance, among those it can run on."""
    draw = np.random.default_rng(task.options["seed"])
    tried = [drawn(task, draw) for _ in range(task.options["tries"])]
    return finished(task, min(tried, key=task.simulator.score))


def drawn(task: PlacingTask, draw: np.random.Generator) -> list[int]:
    """A device by chance for every op."""
    return [int(draw.choice(np.flatnonzero(row))) for row in task.simulator.possible]
