"""Counting collectives: of any program, planned or not, with the reader that ``verify`` uses.

The question is that of PyTorch's ``CommDebugMode``: what does this code really send? There the operators are
intercepted as they are called; a JAX program is one compiled unit, so what is counted here are the collectives in the
compiled text of each program, times its runs.
"""

import contextlib
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .._compat import observed_runs, program_text
from ..errors import SbpError
from ..placement import Placement
from .hlo import KINDS, Collective, collectives, mesh_axes

_PLAN_NAMES = {"permute": "collective-permute"}  # what boxings call it


@dataclass(frozen=True, slots=True)
class Tally:
    """How many collectives ran, and the bytes that each device sent in them."""

    count: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.count + other.count, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.count:g} ({self.bytes:,.0f} bytes)"


@dataclass(frozen=True, slots=True)
class CountedProgram:
    """One compiled program: its name, how often it ran, the collectives of one run (one entry for each tensor)."""

    name: str
    runs: int
    collectives: tuple[Collective, ...]

    @property
    def total(self) -> Tally:
        """Of all runs."""
        return sum((_tally(self, c) for c in self.collectives), Tally())


class CollectiveCount:
    """What ``count_collectives`` counted. ``str()`` is a table; ``count["all-reduce"]`` one kind.

    As a context manager it counts the runs in its block, and may be read inside it and afterwards.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, Any, int]] = {}  # by executable: its name, itself, its runs
        self._read: dict[int, tuple[Collective, ...]] = {}
        self._observing = contextlib.ExitStack()
        self._is_block, self._is_open = True, False

    @classmethod
    def _of(cls, name: str, text: str) -> Self:
        count = cls()
        count._is_block = False
        count._seen[0], count._read[0] = (name, None, 1), _collectives(text)
        return count

    def __enter__(self) -> Self:
        if not self._is_block:
            raise SbpError(
                "count_collectives(fn, ...) has counted already, from the compiled program; to count runs leave the "
                "function out: with sbp.count_collectives() as count: ..."
            )
        if self._is_open:
            raise SbpError("this count's block is open already: make another with sbp.count_collectives()")
        try:
            self._observing.enter_context(observed_runs(self._saw))
        except NotImplementedError as error:
            raise SbpError(
                f"{error}; count one program instead, without running it: sbp.count_collectives(fn, *args)"
            ) from error
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        self._observing.close()

    def _saw(self, name: str, executable: Any) -> None:
        key = id(executable)
        name, executable, runs = self._seen.get(key, (name, executable, 0))
        self._seen[key] = (name, executable, runs + 1)

    @property
    def programs(self) -> tuple[CountedProgram, ...]:
        """The programs that ran, in the order of their first runs; those without collectives as well."""
        found = []
        for key, (name, executable, runs) in tuple(self._seen.items()):
            if key not in self._read:
                self._read[key] = _collectives(program_text(executable))
            found.append(CountedProgram(name, runs, self._read[key]))
        return tuple(found)

    @property
    def total(self) -> Tally:
        """All kinds together."""
        return sum((p.total for p in self.programs), Tally())

    @property
    def kinds(self) -> dict[str, Tally]:
        """By kind, in HLO's words; those that did not occur are left out."""
        return _sums((c.kind, _tally(p, c)) for p in self.programs for c in p.collectives)

    def __getitem__(self, kind: str) -> Tally:
        """One kind, in HLO's words or a boxing's: ``"all-reduce"``, ``"all_reduce"``. Nothing counted is a 0."""
        name = _PLAN_NAMES.get(kind, str(kind).replace("_", "-"))
        if name not in KINDS:
            near = difflib.get_close_matches(name, KINDS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SbpError(f"{kind!r} is no kind of collective; {hint}Kinds: {', '.join(KINDS)}")
        return self.kinds.get(name, Tally())

    def by_axes(self, mesh: Placement | Mesh | AbstractMesh) -> dict[tuple[str, ...], dict[str, Tally]]:
        """By the mesh axes that devices talk along, then by kind.

        Partitions are taken for places in ``mesh``, row by row, as in programs whose arrays lie on it. Under ``()`` is
        what lies along no axes of it: irregular groups, or a program on other devices.
        """
        shape = mesh.shape if isinstance(mesh, Placement) else mesh.axis_sizes
        names = tuple(map(str, mesh.axis_names))
        found: dict[tuple[str, ...], list[tuple[str, Tally]]] = {}
        for p in self.programs:
            for c in p.collectives:
                axes = tuple(names[a] for a in _axes(c, shape))
                found.setdefault(axes, []).append((c.kind, _tally(p, c)))
        return {axes: _sums(parts) for axes, parts in found.items()}

    @property
    def unknown(self) -> tuple[Collective, ...]:
        """Collectives in loops whose trip count XLA does not state: counted as if the loop's body ran once."""
        return tuple(c for p in self.programs for c in p.collectives if not c.known)

    @property
    def conditional(self) -> tuple[Collective, ...]:
        """Collectives in a branch of a conditional: counted as if every branch ran."""
        return tuple(c for p in self.programs for c in p.collectives if c.in_conditional)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the counts are not exact, and why."""
        found = []
        if self.unknown:
            found.append(
                f"{len(self.unknown)} collectives are in loops whose trip count is not known: counted for one trip"
            )
        if self.conditional:
            found.append(f"{len(self.conditional)} collectives are in branches: counted as if every branch ran")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: kinds, total, programs, notes."""
        return {
            "kinds": {kind: {"count": t.count, "bytes": t.bytes} for kind, t in self.kinds.items()},
            "total": {"count": self.total.count, "bytes": self.total.bytes},
            "programs": [
                {"name": p.name, "runs": p.runs, "count": p.total.count, "bytes": p.total.bytes} for p in self.programs
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        programs = self.programs
        runs = sum(p.runs for p in programs)
        what = f"{runs} run{'s' * (runs != 1)} of {len(programs)} program{'s' * (len(programs) != 1)}"
        lines = [f"Collectives in {what}" if self._is_block else f"Collectives in one run of {programs[0].name}"]
        rows = [*self.kinds.items(), ("total", self.total)]
        cells = [("collective", "count", "bytes a device sends")]
        cells += [(kind, f"{t.count:g}", f"{t.bytes:,.0f}") for kind, t in rows]
        wide = [max(len(row[i]) for row in cells) for i in range(3)]
        lines += [f"  {a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}" for a, b, c in cells]
        if self._is_block:
            lines += [f"  {p.runs} x {p.name}: {p.total}" for p in programs if p.collectives]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    __repr__ = __str__


def count_collectives(what: Any = None, *args: Any, **kwargs: Any) -> CollectiveCount:
    """Count collectives: how many of which kind run, and the bytes each device sends in them.

    Without arguments it is a context manager, which counts every run in its block::

        with sbp.count_collectives() as count:
            state, loss = step(state, batch)
        print(count, count["all-reduce"].count, count.by_axes(mesh))

    Each run of each compiled program counts, two calls twice: functions of ``jax.jit`` (plain, of ``nnx.jit``, of
    ``sbp.auto_parallel``), ``.lower().compile()``d ones, eager operations and reshardings. Only compiled programs are
    seen: copies between devices by ``jax.device_put`` that need none are not. Blocks may nest; runs in other threads
    are seen too, those of other processes are not, but there the same programs run.

    With arguments one program is counted, once, and nothing runs: ``what`` is a function (jitted or not) with its
    ``args`` (arrays or ``jax.ShapeDtypeStruct``), or a compiled program, what ``.lower()`` gave, a plan that was made
    here, or a compiled program's text.

    Bytes are those of the compiled program, as in ``plan.verify()``: what XLA widened counts wide.
    Raises ``SbpError`` for what is none of these, and where JAX does not let runs be observed.
    """
    if what is None:
        if args or kwargs:
            raise SbpError("count_collectives(fn, *args) needs the function first; got None")
        return CollectiveCount()
    name = str(getattr(what, "__name__", None) or getattr(what, "function", None) or "the program")
    return CollectiveCount._of(name, _text(what, args, kwargs))


def _text(what: Any, args: Any, kwargs: Any) -> str:
    program = what
    if isinstance(what, str) or hasattr(what, "as_text") or not (callable(what) or hasattr(what, "lower")):
        if args or kwargs:
            raise SbpError(f"count_collectives of a {type(what).__name__} takes no arguments: it is compiled already")
    elif hasattr(what, "lower"):
        program = what.lower(*args, **kwargs)
    else:
        program = jax.jit(what).lower(*args, **kwargs)
    compiler = None if isinstance(program, str) else getattr(program, "compile", None)
    program = compiler() if callable(compiler) else program
    as_text = getattr(program, "as_text", None)
    text = as_text() if as_text is not None else program
    if not isinstance(text, str) or "HloModule" not in text:
        raise SbpError(
            f"count_collectives takes a function and its arguments, a lowered or compiled program, its text (HLO), or "
            f"a plan made in this process; got {type(what).__name__}"
        )
    return text


def _collectives(text: str) -> tuple[Collective, ...]:
    return tuple(c for c in collectives(text) if c.group_size > 1)


def _tally(program: CountedProgram, c: Collective) -> Tally:
    times = program.runs * c.times
    return Tally(times, times * c.sent_bytes)


def _sums(parts: Iterable[tuple[str, Tally]]) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for kind, tally in parts:
        found[kind] = found.get(kind, Tally()) + tally
    return found


def _axes(c: Collective, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The mesh axes of a collective's groups, of a permute those along which sender and receiver differ."""
    if max(max(group) for group in c.groups) >= np.prod(shape):
        return ()
    if c.kind != "collective-permute":
        return mesh_axes(c.groups, shape) or ()
    places = np.unravel_index(np.array(c.groups), shape)
    return tuple(i for i, place in enumerate(places) if (place[:, 0] != place[:, 1]).any())
