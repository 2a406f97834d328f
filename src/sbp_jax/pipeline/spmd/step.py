"""A pipeline's step as one jitted program: made from its plan, and run."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ...ahead import cannot_run_ahead, to_its_end
from ...errors import PlanError
from ...placement import Placement
from ...plan import PlanData
from ...schedules import Schedule
from ...shardings import to_partition_spec
from ...trace import Program
from ..cuts.phases import Phases
from ..programs.slots import StageParts
from ..programs.stage_parts import stage_parts
from ..programs.stage_program import StageProgram
from ..run.actors_of import Instance, splits_backward
from .arguments import Arguments, Held
from .arrays import Fillers, assembled, pieces_of, shape_of, spec_of, stacked, taken_apart
from .program import SpmdProgram
from .wiring import wired


def spmd_step(
    schedule: Schedule, phases: Phases, sources: Sequence[StageProgram], plans: Sequence[PlanData],
    places: Sequence[Placement], program: Program, batch_dims: Mapping[int, tuple[int, int]],
    compiler_options: Mapping[str, Any] | None = None,
) -> "SpmdStep":  # fmt: skip
    """The step of a plan, on devices.

    Raises:
        PlanError: groups of devices of unlike shape; a stage with ordered effects, which one program for several
            devices cannot have.
    """
    check_places(places)
    mesh, ranks = _whole_mesh(places)
    parts: dict[Instance, StageParts] = {}
    for d in range(len(schedule.placement)):
        for s, (source, plan) in enumerate(zip(sources, plans, strict=True)):
            there = replace(plan, placement=places[schedule.rank_of(s, d)])
            parts[d, s] = stage_parts(phases, source, there, splits_backward(schedule), frozenset(), None, mesh)
            check_effects(parts[d, s])
    arguments = Arguments(schedule, parts, phases, program, batch_dims)
    table = wired(schedule, parts)
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    # What replaces no argument (a loss) is wanted in every process.
    several = len({d.process_index for d in mesh.devices.flat}) > 1
    spread = set(range(len(program.output_ops))) - {o for _, o in program.donated} if several else set()
    whole = SpmdProgram(schedule, parts, arguments, table, mesh.axis_names[0], is_cpu, spread)
    return SpmdStep(whole, mesh, ranks, len(program.output_ops), dict(compiler_options or {}))


def check_places(places: Sequence[Placement]) -> None:
    """Refuse groups of devices that one program cannot treat alike."""
    unlike = next((p for p in places if (p.shape, p.axis_names) != (places[0].shape, places[0].axis_names)), None)
    if unlike is not None:
        raise PlanError(
            f'execution="spmd" is one program for all devices, whose groups must have one shape: {places[0]} and '
            f"{unlike} differ. Give a number of stages that divides the devices (sbp.Pipeline(stages=2, ...)), or run "
            'stages on unlike groups with execution="actors"'
        )
    several = sorted({r for p in places for r in p.flat_ranks if sum(r in q.flat_ranks for q in places) > 1})
    if several:
        raise PlanError(
            f'execution="spmd": devices {several} are in several groups; give every stage devices of its own'
        )


def check_effects(parts: StageParts) -> None:
    """Refuse what must happen in an order that one program for several devices does not have."""
    kinds = {type(e).__name__ for part in parts.all for e in part.effects}
    ordered = sorted(k for k in kinds if "Ordered" in k)
    if ordered:
        raise PlanError(
            f"stage {parts.source.stage} has effects that happen in order ({', '.join(ordered)}: jax.debug.print or "
            'io_callback with ordered=True), which execution="spmd", one program for several devices, cannot have. '
            'Take ordered=False, or execution="actors"'
        )


def _whole_mesh(places: Sequence[Placement]) -> tuple[Mesh, np.ndarray]:
    """All devices, groups along a first axis of their own; by place in it the rank."""
    meshes = [p.mesh for p in places]
    names = meshes[0].axis_names
    axis = "stage"
    while axis in names:
        axis = f"{axis}_"
    devices = np.stack([m.devices for m in meshes])
    ranks = np.broadcast_to(np.arange(len(places)).reshape(-1, *(1 for _ in names)), devices.shape)
    types = (jax.sharding.AxisType.Auto,) * (1 + len(names))
    return Mesh(devices, (axis, *names), axis_types=types), ranks


class SpmdStep:
    """A planned step as one program for all devices.

    ``jitted`` takes and gives one array for each position of the program's layouts.
    """

    record = None

    def __init__(
        self, program: SpmdProgram, mesh: Mesh, ranks: np.ndarray, results: int, options: dict[str, Any]
    ) -> None:
        self.program, self.mesh, self.ranks, self.results = program, mesh, ranks, results
        self._fillers, self._lock = Fillers(), threading.Lock()
        self._constants: dict[tuple[int, Held], dict[Any, Any]] = {}
        self._results: dict[int, tuple[tuple[int, ...], NamedSharding]] = {}
        for (d, _), p in program.parts.items():
            for o, given in enumerate(p.source.gives):
                if d == 0 and given.kind == "result":
                    leaf, where = p.plan.outputs[o], p.plan.placement
                    spec = to_partition_spec(leaf.signature, where, len(leaf.shape))
                    self._results[given.key] = tuple(leaf.shape), NamedSharding(where.mesh, spec)
        takes, gives = program.arguments.types, program.results.types
        specs = [spec_of(t, mesh) for t in gives if not t.is_spent]
        specs += [self._results[o][1].spec for o in program.spread]
        mapped = jax.shard_map(
            program.run, mesh=mesh, check_vma=False, in_specs=tuple(spec_of(t, mesh) for t in takes), out_specs=specs
        )

        def sbp_pipeline(*arguments: Any) -> list[Any]:
            return mapped(*arguments)

        spent = tuple(k for k, t in enumerate(takes) if t.is_spent)
        self.jitted = jax.jit(sbp_pipeline, donate_argnums=spent, compiler_options=options)
        self._spent = {t: sum(t == u for u in takes) for t in takes if t.is_spent}
        self.is_shared = len({d.process_index for d in mesh.devices.flat}) > 1
        """Whether other processes run it too."""
        self._waits = cannot_run_ahead(mesh.devices.flat)
        self._there = {
            (r, held): NamedSharding(program.parts[program.own[r][0]].plan.placement.mesh, placed.spec)
            for r in program.ranks
            for held, placed in program.source.placed[r].items()
        }

    def lower(self) -> Any:
        """As ``jax.jit``'s."""
        shapes = [
            jax.ShapeDtypeStruct(
                shape_of(t, self.mesh), t.dtype, sharding=NamedSharding(self.mesh, spec_of(t, self.mesh))
            )
            for t in self.program.arguments.types
        ]
        return self.jitted.lower(*shapes)

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run one step on the arguments, in order; the results in order."""
        with self._lock:
            layout = self.program.arguments
            arrays = assembled(layout, self.mesh, self.ranks, self._pieces(values), self._fillers)
            made = to_its_end(self.jitted, *arrays) if self._waits else self.jitted(*arrays)
            n = len(made) - len(self.program.spread)
            found = taken_apart(
                self.program.results, made[:n], self.mesh, self.ranks, self._result, self._fillers, self._spent
            )  # fmt: skip
            found.update(zip(self.program.spread, made[n:], strict=True))
            return [found[o] for o in range(self.results)]

    def _result(self, rank: int, key: Any) -> tuple[tuple[int, ...], NamedSharding]:
        return self._results[key]

    def _pieces(self, values: Sequence[Any]) -> dict[int, dict[Held, dict[Any, Any]]]:
        """By rank and argument its pieces on the rank's devices."""
        stacks: dict[tuple[int, int], Any] = {}
        found: dict[int, dict[Held, dict[Any, Any]]] = {}
        count = self.program.schedule.microbatches
        for r, own in self.program.source.placed.items():
            found[r] = {}
            for held, placed in own.items():
                there = self._there[r, held]
                if held.kind == "constant":
                    if (r, held) not in self._constants:
                        x = self._stage(r, held.stage).source.program.constants[held.number]
                        self._constants[r, held] = pieces_of(x, placed, there, self.mesh, "a constant")
                    found[r][held] = self._constants[r, held]
                    continue
                if (held.number, held.dim) not in stacks:
                    stacks[held.number, held.dim] = stacked(values[held.number], held, count)
                x = stacks[held.number, held.dim]
                found[r][held] = pieces_of(x, placed, there, self.mesh, f"argument {held.number} of the step")
        return found

    def _stage(self, rank: int, stage: int) -> StageParts:
        return next(self.program.parts[i] for i in self.program.own[rank] if i[1] == stage)

    def close(self) -> None:
        """Nothing is open."""
