"""What every possible stage takes: seconds, bytes, and how long its neighbours make it wait; checked once.

Arrays are indexed [i, j, o]: the stage of layers i to before j, on sub-mesh option o. Of L layers and S options they
have the shape (L, L + 1, S); entries where j <= i are not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...errors import PlanError
from .in_flight import InFlight

Array = np.ndarray[Any, np.dtype[Any]]
# More micro-batches than any schedule has under way, but one that takes all at once.
_MANY = 2**30


class HasDevices(Protocol):
    """A sub-mesh option: a number of devices; ``str()`` of it is its label. ``Submesh`` is one."""

    @property
    def devices(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """The costs of every possible stage; all arrays but ``transfer_seconds`` have the shape (L, L + 1, S).

    Attributes:
        seconds: of one micro-batch, forward and backward, without transfers; inf where a stage is not possible.
        transfer_seconds: one number for each layer, or one for each layer and option, (L, S): of one micro-batch, to
            send a value forward and its gradient back between this layer and the one before it, if they are in
            different stages, on devices of this option. The stage before sends half of that, forward, and the stage
            after the other half, back. Without it, 0; of layer 0, before which nothing is, it is not read.
        once_seconds: what a stage does once a step: gather weights, reduce gradients, update. Without it, 0.
        weights_bytes: on each device of the stage, whatever is in flight: weights, gradients, optimizer state.
        activation_bytes: on each device of the stage, for each micro-batch in flight.

    Raises:
        PlanError: shapes that do not fit, or numbers that are negative or NaN.
    """

    seconds: Array
    transfer_seconds: Array | Sequence[float] | None = None
    once_seconds: Array | None = None
    weights_bytes: Array | None = None
    activation_bytes: Array | None = None

    def __post_init__(self) -> None:
        seconds = np.asarray(self.seconds, float)
        shape = seconds.shape
        if len(shape) != 3 or shape[1] != shape[0] + 1 or 0 in shape:
            raise PlanError(f"seconds has shape {shape}: give (L, L + 1, S) for L layers and S sub-mesh options")
        stage = np.arange(shape[1])[None, :, None] > np.arange(shape[0])[:, None, None]
        for name in ("seconds", "once_seconds", "weights_bytes", "activation_bytes"):
            given = getattr(self, name)
            if given is None:
                continue
            array = np.asarray(given, float)
            if array.shape != shape:
                raise PlanError(f"{name} has shape {array.shape}, seconds has {shape}: give both for the same stages")
            wrong = np.argwhere(stage & ~(array >= 0))
            if len(wrong):
                i, j, o = map(int, wrong[0])
                raise PlanError(f"{name}[{i}, {j}, {o}] is {array[i, j, o]:g}: give numbers of at least 0, or inf")
            object.__setattr__(self, name, array)
        transfer = np.zeros(shape[0]) if self.transfer_seconds is None else np.asarray(self.transfer_seconds, float)
        if (
            transfer.shape not in (shape[:1], (shape[0], shape[2]))
            or not (np.isfinite(transfer) & (transfer >= 0)).all()
        ):
            raise PlanError(
                f"transfer_seconds is {np.array2string(transfer, threshold=8)}: give {shape[0]} finite numbers of at "
                "least 0, one for each layer, of the cut before it"
            )
        by_option = np.repeat(transfer[:, None], shape[2], axis=1) if transfer.ndim == 1 else transfer
        object.__setattr__(self, "transfer_seconds", by_option)

    @property
    def layers(self) -> int:
        """L."""
        return self.seconds.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What the search reads: for every possible stage, all that it adds.

    Attributes:
        latency: seconds that one micro-batch takes in the stage: its compute, and what the stage sends of it.
        pace: seconds from one micro-batch to the next, at the least; inf where the stage is not possible.
        returned: (L, S), what a stage that begins at a layer sends back.
        once: seconds once a step.
        most_after: how many stages may follow this one, for its memory; L where any number, -1 where it never fits.
        sizes: devices of each option.
        least, most: how many stages there may be.
        window: how many micro-batches a stage with so many stages after it has under way at most, which hold up the
            next one; None where they do not.
    """

    latency: Array
    pace: Array
    returned: Array
    once: Array
    most_after: Array
    sizes: tuple[int, ...]
    labels: tuple[str, ...]
    devices: int
    microbatches: int
    least: int
    most: int
    use_all: bool
    window: Array | None = None

    @property
    def layers(self) -> int:
        """L."""
        return self.pace.shape[0]

    def stage_seconds(self, stages: Sequence[tuple[int, int, int]]) -> tuple[float, float, float]:
        """(sum of latencies, pace, largest once) of the stages (i, j, o): the pace is that of the slowest stage, or of
        the slowest way there and back; see ``plan_stages``."""
        pace, way = float(max(self.pace[s] for s in stages)), 0.0
        for after, (i, j, o) in enumerate(reversed(stages)):
            way += float(self.latency[i, j, o])
            if self.window is not None:
                pace = max(pace, (way - float(self.returned[i, o])) / float(self.window[after]))
        return way, pace, float(max(self.once[s] for s in stages))

    def total_seconds(self, stages: Sequence[tuple[int, int, int]]) -> float:
        """Of a step; see ``plan_stages``."""
        sums, slowest, once = self.stage_seconds(stages)
        return sums + (self.microbatches - 1) * slowest + once


def sends(costs: StageCosts) -> tuple[Array, Array]:
    """The seconds in which a stage sends, of one micro-batch: (L, S) back, if it begins at a layer, and (L + 1, S)
    forward, if it ends before one."""
    half = np.asarray(costs.transfer_seconds, float) / 2
    back = np.concatenate((np.zeros((1, half.shape[1])), half[1:]))
    return back, np.concatenate((back, np.zeros((1, half.shape[1]))))


def transfers(costs: StageCosts) -> Array:
    """(L, L + 1, S): the seconds in which the stage of layers i to before j sends, of one micro-batch."""
    back, forward = sends(costs)
    return back[:, None, :] + forward[None, :, :]


def stage_bytes(costs: StageCosts, in_flight: InFlight, stages_after: int, microbatches: int) -> Array:
    """(L, L + 1, S): the bytes on each device of every stage, with so many stages after it."""
    held = in_flight(stages_after, microbatches)
    zeros = np.zeros_like(costs.seconds)
    weights = zeros if costs.weights_bytes is None else costs.weights_bytes
    activations = zeros if costs.activation_bytes is None else costs.activation_bytes
    return weights + held * activations


def most_stages_after(costs: StageCosts, in_flight: InFlight, microbatches: int, limit_bytes: float | None) -> Array:
    """(L, L + 1, S): with how many stages after it a stage fits at most: L for any number, -1 for none at all."""
    layers = costs.layers
    most = np.full(costs.seconds.shape, layers)
    if limit_bytes is None:
        return most
    if not limit_bytes > 0:
        raise PlanError(f"limit_bytes={limit_bytes}: give the bytes of one device's memory, above 0, or None")
    most[:] = -1
    held = -1
    for after in range(layers):
        now = in_flight(after, microbatches)
        if now < held:
            raise PlanError(
                f"in_flight({after}, {microbatches}) is {now}, in_flight({after - 1}, {microbatches}) is {held}: "
                "a stage may not hold fewer micro-batches the more stages follow it"
            )
        held = now
        most[stage_bytes(costs, in_flight, after, microbatches) <= limit_bytes] = after
    # Of layers i to before j, at most L - j stages follow.
    most[most >= layers - np.arange(layers + 1)[None, :, None]] = layers
    return most


def problem_of(
    costs: StageCosts,
    options: Sequence[HasDevices],
    devices: int,
    microbatches: int,
    most_after: Array,
    *,
    overlaps: bool,
    stages: int | None,
    least_stages: int,
    most_stages: int | None,
    use_all: bool,
    window: InFlight | None = None,
) -> Problem:
    """Check what was given, and put it together."""
    if len(options) != costs.seconds.shape[2]:
        raise PlanError(
            f"{len(options)} sub-mesh options are given, seconds has {costs.seconds.shape[2]}: give as many"
        )
    sizes = tuple(int(o.devices) for o in options)
    if min(sizes) < 1:
        raise PlanError(f"sub-mesh option {options[sizes.index(min(sizes))]} has {min(sizes)} devices: give at least 1")
    if stages is not None:
        if (least_stages, most_stages) not in ((1, None), (stages, stages)):
            raise PlanError(
                f"stages={stages} is given with least_stages={least_stages}, most_stages={most_stages}: "
                "give either the number or its limits"
            )
        least_stages = most_stages = stages
    for name, number in (("devices", devices), ("microbatches", microbatches), ("least_stages", least_stages)):
        if number < 1:
            raise PlanError(f"{name}={number}: give at least 1")
    most = costs.layers if most_stages is None else min(most_stages, costs.layers)
    if least_stages > most:
        asked = f"stages={stages}" if stages is not None else f"least_stages={least_stages}, most_stages={most_stages}"
        raise PlanError(f"{asked} of {costs.layers} layers: give numbers of at least 1, not above the layers, in order")
    moved = transfers(costs)
    pace = np.maximum(costs.seconds, moved) if overlaps else costs.seconds + moved
    once = np.zeros_like(pace) if costs.once_seconds is None else costs.once_seconds
    index = np.arange(costs.layers + 1)
    impossible = (index[None, :, None] <= index[:-1, None, None]) | ~np.isfinite(costs.seconds) | ~np.isfinite(once)
    return Problem(
        latency=costs.seconds + moved,
        pace=np.where(impossible, np.inf, pace),
        once=np.where(impossible, np.inf, once),
        returned=sends(costs)[0],
        most_after=most_after,
        sizes=sizes,
        labels=tuple(map(str, options)),
        devices=devices,
        microbatches=microbatches,
        least=least_stages,
        most=most,
        use_all=use_all,
        window=None if window is None else np.array([window(n, _MANY) for n in range(costs.layers)], float),
    )
