"""A pipeline's step: arguments to the stages, the actors through their schedule, the update, results back."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...actors import Record, Runtime
from ...schedules import Schedule
from ..programs.slots import StageParts
from .actors_of import Instance, step_actors
from .stage_run import StageRun, moved, wait
from .stage_versions import VersionedRun, copies


@dataclass(slots=True)
class _Link:
    """Where a value that is known after the micro-batches goes: the argument of a stage."""

    stage: int
    port: int


class PipelineStep:
    """A planned step that runs on stages. One call at a time: a second thread waits for the first."""

    is_shared = False

    def __init__(
        self, schedule: Schedule, parts: Mapping[Instance, StageParts], batch_dims: Mapping[int, tuple[int, int]],
        results: int,
    ) -> None:  # fmt: skip
        self.parts, self.count, self.results = dict(parts), schedule.microbatches, results
        self._actors = step_actors(schedule, parts, batch_dims)
        self._runtime = Runtime(self._actors.graph, wait)
        self._batch_arguments = {i for i, _ in batch_dims.values()}
        self._lock = threading.Lock()
        self._copies = copies(parts)
        self._links: dict[int, list[_Link]] = {}
        for (d, s), p in self.parts.items():
            for port, wanted in enumerate(p.source.takes):
                if wanted.kind == "late" and d == 0:
                    self._links.setdefault(wanted.key, []).append(_Link(s, port))
        self.record: Record | None = None
        """What the last run's actors did when."""

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run one step on the arguments, in order; the results in order."""
        with self._lock:
            try:
                return self._run(values)
            finally:
                self._actors.batch.clear()
                for stage in self._actors.stages.values():
                    stage.clear()

    def _run(self, values: Sequence[Any]) -> list[Any]:
        stages = self._actors.stages
        for i in self._batch_arguments:
            self._actors.batch[i] = values[i]
        for stage in stages.values():
            for port, wanted in enumerate(stage.parts.source.takes):
                if wanted.kind == "argument":
                    stage.ports[port] = moved(values[wanted.key], stage.parts.shardings[port])
                elif wanted.kind == "constant":
                    stage.ports[port] = stage.constant(port)
            stage.begin()
        self.record = self._runtime.run()
        for stage in stages.values():
            stage.finish()
        for copy in self._copies:
            (s, port), (to, there) = copy.source, copy.to
            stages[0, to].ports[there] = moved(stages[0, s].ports[port], stages[0, to].parts.shardings[there])
        self._add_directions(stages)
        for level in range(max(len(stage.parts.after) for stage in stages.values())):
            self._after(level, stages)
        found: list[Any] = [None] * self.results
        for (d, s), stage in stages.items():
            for o, given in enumerate(stage.parts.source.gives):
                if d == 0 and given.kind == "result" and given.stage == s:
                    found[given.key] = stage.results[o]
        return found

    def _add_directions(self, stages: Mapping[Instance, StageRun]) -> None:
        """Where the stages are there twice (Chimera), the sums of the second ones to the first ones."""
        for (d, s), stage in stages.items():
            if d:
                stages[0, s].add(stage)

    def _after(self, level: int, stages: Mapping[Instance, StageRun]) -> None:
        """One level of what follows the micro-batches, and what stages give each other of it."""
        for (d, _), stage in stages.items():
            if d == 0 and level < len(stage.parts.after):
                stage.once(stage.parts.after[level])
        for (d, _), stage in stages.items():
            for o, given in enumerate(stage.parts.source.gives):
                if d == 0 and given.kind == "late" and given.level == level:
                    for link in self._links.get(given.key, ()):
                        to = stages[0, link.stage]
                        to.ports[link.port] = moved(stage.results[o], to.parts.shardings[link.port])

    @property
    def weight_versions(self) -> list[int]:
        """By stage the most versions of its weights that it held at once in the last run."""
        runs = [stage for (d, _), stage in self._actors.stages.items() if d == 0]
        return [stage.most_versions if isinstance(stage, VersionedRun) else 1 for stage in runs]

    def close(self) -> None:
        """End the threads of its actors."""
        self._runtime.close()
