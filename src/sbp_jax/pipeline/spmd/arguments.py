"""What every rank has of a step's arguments, and what it gets of the others in the program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from ...schedules import Schedule
from ...shardings import to_partition_spec
from ...signature import Signature
from ...trace import Program
from ..cuts.phases import Phases
from ..programs.slots import StageParts
from ..programs.stage_program import result_stage
from ..run.actors_of import Instance
from .layout import Exchange, Transfer, Type


@dataclass(frozen=True, slots=True)
class Held:
    """An argument on a rank's devices: a whole one, a "batch" as a stack of its micro-batches' parts along ``dim``
    (whole where that is -1), or a "constant" of a stage's program."""

    kind: str
    number: int
    signature: Signature
    dim: int = -1
    stage: int = -1


@dataclass(frozen=True, slots=True)
class Placed:
    """What is put on a rank's devices: its shape and dtype there, before it is cut by ``spec``."""

    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec
    type: Type


class Arguments:
    """By rank what is put there before a run (``placed``); by stage and port where it finds its argument.

    A donated argument is kept by one stage, at home; others that read it are given it in the program.
    """

    def __init__(
        self, schedule: Schedule, parts: Mapping[Instance, StageParts], phases: Phases, program: Program,
        batch_dims: Mapping[int, tuple[int, int]],
    ) -> None:  # fmt: skip
        self.schedule, self.parts, self.phases, self.batch_dims = schedule, parts, phases, batch_dims
        self.donated = {i for i, _ in program.donated}
        # What replaces an argument is where the next step finds it.
        self.homes = {i: result_stage(phases, o) for i, o in program.donated}
        self.placed: dict[int, dict[Held, Placed]] = {r: {} for r in range(schedule.ranks)}
        self.held: dict[tuple[Instance, int], Held] = {}
        transfers: list[Transfer] = []
        for i, p in parts.items():
            for port, wanted in enumerate(p.source.takes):
                is_batch = wanted.kind == "part" and wanted.stage < 0
                if wanted.kind not in ("argument", "constant") and not is_batch:
                    continue
                home = self.home(i, port)
                if home is None:
                    held, placed = self.found(i, port)
                    self.held[i, port] = held
                    self.placed[self.rank(i)][held] = placed
                else:
                    kind = Type(self.found(i, port)[1].type.shape, p.source.program.input_ops[port].outs[0].dtype)
                    given = home, self.port(home, wanted.key), p.arrives(port)
                    transfers.append(Transfer(self.rank(home), given, self.rank(i), (i, port), kind))
        self.exchange = Exchange(transfers, schedule.ranks)

    def rank(self, instance: Instance) -> int:
        """The rank of a stage of a direction."""
        return self.schedule.rank_of(instance[1], instance[0])

    def port(self, instance: Instance, argument: int) -> int:
        """The number that an argument of the step has in a stage."""
        takes = self.parts[instance].source.takes
        return next(k for k, port in enumerate(takes) if port.kind == "argument" and port.key == argument)

    def kept_by(self, argument: int, otherwise: int) -> Instance:
        """The stage that keeps a donated argument."""
        homes = [self.homes[argument], self.phases.home.get(argument, otherwise), otherwise]
        takes = {s: self.parts[0, s].source.takes for s in homes}
        return 0, next(s for s in homes if any(t.kind == "argument" and t.key == argument for t in takes[s]))

    def home(self, instance: Instance, port: int) -> Instance | None:
        """The stage that gives this one a donated argument; None where it is put there itself."""
        p = self.parts[instance]
        wanted = p.source.takes[port]
        if wanted.kind != "argument" or wanted.key not in self.donated:
            return None
        home = self.kept_by(wanted.key, instance[1])
        if home == instance:
            return None
        at_home = self.parts[home]
        is_there = self.rank(home) == self.rank(instance)
        return None if is_there and at_home.arrives(self.port(home, wanted.key)) == p.arrives(port) else home

    def found(self, i: Instance, port: int) -> tuple[Held, Placed]:
        """What a stage's argument is on its rank."""
        p = self.parts[i]
        wanted, x = p.source.takes[port], p.source.program.input_ops[port].outs[0]
        signature = p.arrives(port)
        shape = x.shape[1:] if wanted.kind == "part" else x.shape
        spec = to_partition_spec(signature, p.plan.placement, len(shape))
        if wanted.kind == "part":
            number, dim = self.batch_dims[wanted.key]
            held = Held("batch", number, signature, dim)
            if dim >= 0:
                shape, spec = (x.shape[0], *shape), PartitionSpec(None, *spec)
        elif wanted.kind == "constant":
            held = Held("constant", wanted.key, signature, stage=i[1])
        else:
            held = Held("argument", wanted.key, signature)
        local = NamedSharding(p.own.mesh, spec).shard_shape(shape)
        is_donated = wanted.kind == "argument" and wanted.key in self.donated
        is_spent = is_donated and self.rank(self.kept_by(wanted.key, i[1])) == self.rank(i)
        return held, Placed(shape, x.dtype, spec, Type(local, x.dtype, is_spent))
