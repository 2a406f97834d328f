"""A stage that updates its weights between micro-batches: the versions that are under way, and what is left at the end.

A micro-batch's forward and backward part use the same version of the weights: the newest at its forward part
(PipeDream's weight stashing), or one that the schedule says (``schedules.versions_used``). A version is let go of when
no micro-batch will use it and a newer one is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...schedules import Schedule, versions_used
from ..programs.slots import StagePart, StageParts, UpdateParts
from .stage_run import Made, StageRun, moved


@dataclass(slots=True)
class _Version:
    """What the loop reads of the state, and of what is made of it, by port and by variable."""

    ports: dict[int, Any]
    held: dict[Any, Any]


@dataclass(slots=True)
class VersionedRun(StageRun):
    """One stage in one step with several updates.

    ``uses`` is by micro-batch its version, ``every`` how many micro-batches an update is made of, ``copied`` the ports
    that other stages report something of. ``most_versions`` is how many were held at once in the last step.
    """

    uses: Sequence[int] = ()
    every: int = 1
    copied: frozenset[int] = frozenset()
    most_versions: int = 0
    newest: int = 0
    versions: dict[int, _Version] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    groups: dict[int, dict[int, Any]] = field(default_factory=dict)
    totals: dict[int, Any] = field(default_factory=dict)
    found: dict[int, Any] = field(default_factory=dict)
    found_held: dict[Any, Any] = field(default_factory=dict)

    @property
    def updates(self) -> UpdateParts:
        """Its parts."""
        assert self.parts.updates is not None
        return self.parts.updates

    def begin(self) -> None:
        """What is made once, of the first version."""
        StageRun.begin(self)
        self.newest, self.most_versions = 0, 1
        self.left = {v: list(self.uses).count(v) for v in set(self.uses)}
        self.versions[0] = self.version()

    def version(self) -> _Version:
        """What the loop reads of what is there now."""
        slots = [slot for part in (self.parts.forward, *self.parts.backward) for slot in part.takes]
        ports = {slot.key: self.ports[slot.key] for slot in slots if slot.kind == "port" and slot.key in self.ports}
        return _Version(ports, {slot.key: self.held[slot.key] for slot in slots if slot.kind == "held"})

    def micro_batch(
        self, part: StagePart, number: int, arrived: Mapping[int, Any], residuals: Mapping[Any, Any]
    ) -> Made:
        """Run a part of the loop with the micro-batch's version of the weights, and its group's sums."""
        used, group = self.uses[number], number // self.every
        if group not in self.groups:
            self.groups[group] = self.first_sums()
        ports, held, sums = self.ports, self.held, self.sums
        self.ports, self.held, self.sums = self.versions[used].ports, self.versions[used].held, self.groups[group]
        try:
            made = StageRun.micro_batch(self, part, number, arrived, residuals)
        finally:
            self.ports, self.held, self.sums = ports, held, sums
        if part is self.parts.backward[-1]:
            self.left[used] -= 1
            self.drop()
        return made

    def first_sums(self) -> dict[int, Any]:
        """What the sums of a group begin with."""
        start = self.updates.start
        if start is None:
            return {}
        found = start.function(*(self.find(slot, {}, {}, 0) for slot in start.takes))
        return {slot.key: x for slot, x in zip(start.gives, found, strict=True)}

    def drop(self) -> None:
        """Let go of versions that nothing will use."""
        for v in [v for v in self.versions if v != self.newest and not self.left.get(v)]:
            del self.versions[v]

    def update(self, group: int) -> Made:
        """Update the state by the sums of a group of micro-batches: a new version."""
        part, count = self.updates.update, self.updates.count
        self.sums = self.groups.pop(group, {})
        stacks, own = self.stacks, range(group * self.every, (group + 1) * self.every)
        self.stacks = {j: [x[k] for k in own] * count for j, x in stacks.items()}
        self.leave()
        given = [self.find(slot, {}, {}, 0) for slot in part.takes]
        self.stacks = stacks
        results = part.function(*given)
        self.keep(part, results, 0, None)
        self.add_totals()
        changed = {p: moved(self.results[o], self.parts.shardings[p]) for p, o in self.updates.replaced.items()}
        self.ports = {**self.ports, **changed}
        self.newest += 1
        if self.newest < count:
            for o in self.updates.replaced.values():  # a later update's are those of the step
                del self.results[o]
            again = any(slot.kind == "port" and slot.key in changed for slot in self.parts.before.takes)
            if again:
                self.once(self.parts.before)
            self.versions[self.newest] = self.version()
        else:  # nothing runs with the last one
            self.versions[self.newest] = _Version(self.ports, {})
        self.drop()
        self.most_versions = max(self.most_versions, len(self.versions))
        return Made(is_own=True, pending=list(results))

    def leave(self) -> None:
        """Note the state as this update finds it, as far as something is reported of it."""
        slots = [slot for part in self.parts.after for slot in part.takes]
        ports = {*self.copied, *(slot.key for slot in slots if slot.kind == "port")}
        self.found = {p: self.ports[p] for p in ports if p in self.ports}
        kept = {slot.key for slot in slots if slot.kind == "held"}
        self.found_held = {v: self.held[v] for v in kept if v in self.held}

    def add_totals(self) -> None:
        """Add a group's sums to those of the step, where something is reported of them."""
        told = {slot.key for part in self.parts.after for slot in part.takes if slot.kind == "sum"}
        for j in told & self.sums.keys():
            held = self.totals.get(j)
            self.totals[j] = self.sums[j] if held is None else self.parts.join(j, held, self.sums[j])
        self.sums = {}

    def finish(self) -> None:
        """After all micro-batches: what the reports of the step read."""
        if self.updates.start is None:  # without a loop, nothing came in between
            for group in range(self.updates.count):
                self.update(group)
        made = {slot.key for slot in self.updates.update.gives if slot.kind == "held"}
        self.held = {**self.found_held, **{v: self.held[v] for v in made if v in self.held}}
        self.ports = {**self.ports, **self.found}
        self.sums = self.totals
        self.versions.clear()

    def clear(self) -> None:
        """Let go of a step's arrays."""
        StageRun.clear(self)
        for kept in (self.versions, self.groups, self.totals, self.found, self.found_held):
            kept.clear()


@dataclass(frozen=True, slots=True)
class Copy:
    """Something of the state that a stage reports of, and another updates: (stage, port) there and here."""

    source: tuple[int, int]
    to: tuple[int, int]


def copies(parts: Mapping[tuple[int, int], StageParts]) -> list[Copy]:
    """What stages are to be told of each other's state before they report."""
    owner: dict[int, tuple[int, int]] = {}
    for (_, s), p in parts.items():
        for port in p.updates.replaced if p.updates else ():
            owner.setdefault(p.source.takes[port].key, (s, port))
    return [
        Copy(owner[wanted.key], (s, port))
        for (_, s), p in parts.items()
        for port, wanted in enumerate(p.source.takes)
        if wanted.kind == "argument" and wanted.key in owner and p.updates and port not in p.updates.replaced
    ]


def stage_runs(parts: Mapping[tuple[int, int], StageParts], schedule: Schedule) -> dict[tuple[int, int], StageRun]:
    """The stages of a step, by (direction, stage)."""
    found: dict[tuple[int, int], StageRun] = {}
    told = [c.source for c in copies(parts)]
    for (d, s), p in parts.items():
        if p.updates is None:
            found[d, s] = StageRun(p, schedule.microbatches)
        else:
            copied = frozenset(port for stage, port in told if stage == s)
            uses, every = versions_used(schedule, schedule.rank_of(s, d)), schedule.update_every
            found[d, s] = VersionedRun(
                p, schedule.microbatches, uses=uses, every=every or schedule.microbatches, copied=copied
            )
    return found
