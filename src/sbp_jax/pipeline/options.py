"""What a user asks of a pipeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import PlanError
from ..planner.catalogue import lookup
from ..schedules import schedules


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A step cut into stages on groups of devices, and its batch into micro-batches (``AutoParallelConfig.pipeline``).

    The function stays what it is, a training step on the whole batch: its forward and backward pass run for each
    micro-batch, its update once after them, with the same results.

    Attributes:
        stages: how many groups of devices. Or "auto": the planner's choice, with the devices of each. Or a list of
            paths of arguments at which a new stage begins (``["blocks/4", "blocks/8"]``: three stages): the first op
            that reads an argument below such a path is the first of its stage. ``sbp.scope`` in the function says it
            there.
        microbatches: how many parts the batch is cut into. Or "auto": the planner's choice among divisors of the batch.
        schedule: the name of one in ``sbp.schedules``: "gpipe", "1f1b", "eager_1f1b", "interleaved_1f1b",
            "interleaved_gpipe", "zb_h1", "zb_v", "dualpipe_v", "chimera". Two change the mathematics, and are taken
            only where they are named: "pipedream" and "pipedream_2bw" update weights between micro-batches, several
            times a call, by gradients at older weights.
        chunks: how many (virtual) stages a group of devices has, for the interleaved schedules.
        batch_statistics: "whole": a layer that needs statistics of the whole batch (a batch norm) is an error with more
            than one micro-batch. "microbatch": it takes those of each micro-batch, as GPipe does: another function than
            without a pipeline, whose running statistics are the means over the micro-batches.
        execution: "actors": a program for each part of each stage, run as what they need arrives; stages may be unlike.
            "spmd": the whole step as one program for all devices, whose groups must be of one shape; all take their
            tasks in step, as the schedule's table says. It is what runs in several processes.
        update_every: for "pipedream_2bw", how many micro-batches an update is made of: a divisor of ``microbatches``,
            at least as many as there are groups of devices; by default the smallest such.
        registers: how many micro-batches' activations a group of devices may hold at most; by default as many as the
            schedule wants. Fewer than that are an error that says how many it needs.
        search: with ``stages="auto"``, the published search that chooses the stages and their devices, by name:
            ``print(sbp.planner.solvers().of("stages"))`` lists them. By default the exact one ("alpa_inter"), and
            besides what it finds groups of devices alike.
        search_options: the options of that search, by name.

    Raises:
        PlanError: a schedule or search that is not known, options that it does not have; numbers below 1.
    """

    stages: int | str | Sequence[str] = "auto"
    microbatches: int | str = 1
    schedule: str = "1f1b"
    chunks: int | None = None
    batch_statistics: str = "whole"
    execution: str = "actors"
    update_every: int | None = None
    registers: int | None = None
    search: str | None = None
    search_options: Mapping[str, bool | int | float | str] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        stages: Any = self.stages
        if not isinstance(stages, int | str):
            stages = tuple(stages)
            object.__setattr__(self, "stages", stages)
            if not stages or not all(isinstance(path, str) and path for path in stages):
                raise PlanError(f"stages as a list has the paths at which a new stage begins; got {self.stages!r}")
        elif isinstance(stages, str) and stages != "auto":
            raise PlanError(f"stages is a number, 'auto' or a list of paths, got {stages!r}; for one cut: [{stages!r}]")
        numbers = [(name, getattr(self, name)) for name in ("microbatches", "chunks", "update_every", "registers")]
        for name, n in (("stages", stages), *numbers):
            number: Any = n
            is_number = isinstance(n, int) and not isinstance(n, bool)
            is_missing = name == "microbatches" and not is_number and n != "auto"
            if (is_number and number < 1) or isinstance(n, bool) or is_missing:
                or_auto = " or 'auto'" if name in ("stages", "microbatches") else ""
                raise PlanError(f"Pipeline({name}=...) is a number of at least 1{or_auto}, got {n!r}")
        if self.batch_statistics not in ("whole", "microbatch"):
            raise PlanError(f"batch_statistics is 'whole' or 'microbatch', got {self.batch_statistics!r}")
        if self.execution not in ("actors", "spmd"):
            raise PlanError(
                "execution is 'actors' (a program for each part of each stage) or 'spmd' (one program for all "
                f"devices), got {self.execution!r}"
            )
        known = schedules()
        if self.schedule not in known:
            raise PlanError(f"schedule {self.schedule!r} is not known; possible: {', '.join(map(repr, sorted(known)))}")
        if self.chunks is not None and known[self.schedule].chunks is not None:
            several = ", ".join(repr(k) for k, t in sorted(known.items()) if t.chunks is None)
            raise PlanError(
                f"schedule {self.schedule!r} has {known[self.schedule].chunks} stage(s) a group of devices: leave "
                f"chunks out, or take one of {several}"
            )
        if self.update_every is not None and "update_every" not in known[self.schedule].options:
            raise PlanError(
                f"schedule {self.schedule!r} has no choice of how many micro-batches an update is made of: leave "
                "update_every out, or take 'pipedream_2bw'"
            )
        self._check_search()

    def _check_search(self) -> None:
        if self.search is None:
            if self.search_options is not None:
                raise PlanError("search_options are those of a search: name it with search=, or leave them out")
            return
        method = lookup(self.search, "stages")
        if self.stages != "auto":
            raise PlanError(
                f"search={self.search!r} decides the stages, and stages={self.stages!r} is given: "
                "leave out one of them (stages='auto' with search=)"
            )
        if self.search_options is not None:
            if not isinstance(self.search_options, Mapping):
                raise PlanError(f"search_options is a dict of options by name, got {self.search_options!r}")
            object.__setattr__(self, "search_options", dict(self.search_options))
        method.checked(self.search_options)
