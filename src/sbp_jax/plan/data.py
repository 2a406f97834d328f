"""A plan is data: every value's signature, every move of data, what it costs, what was proven. JSON both ways.

``PlanData`` knows nothing of tracing, planning or XLA. ``sbp.Plan`` (``step/plan.py``) adds what needs them.
"""

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import PlanError
from ..paths import named
from ..placement import Placement
from ..shardings import to_partition_spec
from ..signature import Signature
from .insight import Insight
from .parts import Boxing, Leaf, Recomputed, Rewritten
from .timeline import Timeline
from .trees import packed, unpacked

SCHEMA_VERSION = 4
Lowering = Literal["manual", "gspmd"]


@dataclass
class PlanData:
    """What was decided for one function on one placement.

    ``strategies`` is a table of (operand signatures, result signatures); ``nodes`` indexes it for every node of
    the program in order. ``fingerprint`` identifies the traced program. Bytes are per device and step, seconds
    per step, memory in bytes per device. ``unruled``: the large ops that every device computes whole, as (primitive,
    "line: reason"); the notes say the same. ``timeline`` is what ``simulate`` needs besides, ``make_insight`` finds
    what reports and ``explain`` do; ``hardware`` is the cluster it was made for, as TOML, ``options`` what the
    configuration asked for beyond its defaults. With ``rewritten``, ``nodes`` are those of the program after its
    substitutions; with ``recomputed``, after ``trace.recompute``, too.
    ``byte_prices``: where memory is short, seconds that a byte less held at a node would be worth, as the bound's proof
    has them; not saved.
    ``argument_names`` are what the function calls its arguments given by position, for reports: a leaf's path has their
    numbers.
    ``objective`` is what the search minimised, ``bound`` is proven for it. ``priced`` says which: "sum" is all compute
    and all boxing, ``step_seconds`` unless weights were asked for; "exposed" charges only a part of the boxing that
    compute can cover (``AutoParallelConfig(overlap=...)``), so it is less than ``step_seconds``.
    ``frontier`` is of a search that finds several plans: seconds a step and bytes at the peak of each.
    ``lowering`` is what a step of it becomes, as in ``AutoParallelConfig``. ``only_even``: the bound is proven among
    even splits only; padded ones (``AutoParallelConfig(pad=True)``) may be cheaper.
    """

    function: str
    fingerprint: str
    placement: Placement
    inputs: list[Leaf]
    outputs: list[Leaf]
    strategies: list[tuple[tuple[Signature, ...], tuple[Signature, ...]]]
    nodes: list[int]
    boxing_list: list[Boxing]
    compute_seconds: float
    boxing_seconds: float
    memory_per_device: float
    objective: float
    bound: float
    cluster: str
    solver: str
    planning_seconds: float
    unruled: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    frontier: list[tuple[float, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    recomputed: Recomputed | None = None
    rewritten: Rewritten | None = None
    lowering: Lowering = "manual"
    only_even: bool = False
    make_insight: Callable[[], Insight] = field(default=Insight, repr=False, compare=False)
    priced: Literal["sum", "exposed"] = "sum"
    hardware: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    argument_names: list[str] = field(default_factory=list)
    byte_prices: dict[int, float] = field(default_factory=dict, repr=False, compare=False)
    in_tree: Any = None
    out_tree: Any = None

    @property
    def insight(self) -> Insight:
        """The layers, the decisions with their alternatives, the peak; made once."""
        found = self.make_insight()
        self.make_insight = _Given(found)  # what it was made from is let go
        return found

    def __getstate__(self) -> dict[str, Any]:
        """For ``pickle``: the data. What only this process can do (compile, plan again) is left out, as by ``save``."""
        state = self.__dict__ | {"make_insight": _Given(self.insight)}
        state = {k: None if callable(v) and not isinstance(v, _Given) else v for k, v in state.items()}
        return state | {"in_tree": packed(self.in_tree), "out_tree": packed(self.out_tree)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, in_tree=unpacked(state["in_tree"]), out_tree=unpacked(state["out_tree"]))

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of the data that can do what this plan can."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        kept = {"in_tree", "out_tree"} | {k for k, v in self.__dict__.items() if callable(v)}
        made.__dict__.update({k: v if k in kept else copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step: compute and boxing, not overlapped."""
        return self.compute_seconds + self.boxing_seconds

    @property
    def bytes_on_wire(self) -> float:
        """Bytes each device sends in a step."""
        return sum(b.bytes * b.times for b in self.boxing_list)

    @property
    def optimality_gap(self) -> float:
        """Proven: (objective - lower bound) / objective; 0 when optimal."""
        if not self.objective:
            return 0.0
        gap = max(0.0, (self.objective - self.bound) / self.objective)
        return 0.0 if gap < 1e-9 else gap

    def called(self, path: str) -> str:
        """An argument's path as reports show it: by name where the function has one (``params/w`` for ``0/w``)."""
        return named(path, self.argument_names)

    def boxings(self) -> list[Boxing]:
        """Every move of data between devices or signatures, in program order."""
        return list(self.boxing_list)

    def signatures(self) -> tuple[Any, Any]:
        """(arguments, results): trees of ``Signature`` like the function's.

        The arguments are the tuple of positional ones; with keyword arguments, that tuple and a dict of them. A plan
        read from a file does not know the trees: it gives dicts by path.
        """
        return self._trees(lambda leaf: leaf.signature)

    def partition_specs(self) -> tuple[Any, Any]:
        """(arguments, results), as ``signatures``: trees of ``PartitionSpec``, for other code."""
        return self._trees(lambda leaf: to_partition_spec(leaf.signature, self.placement, len(leaf.shape)))

    def shardings(self) -> tuple[Any, Any]:
        """(arguments, results), as ``signatures``: trees of ``NamedSharding`` on the placement's mesh.

        For ``jax.jit(fn, in_shardings=arguments, out_shardings=results)``, without this library at run time. Static
        arguments have no entry, as ``jax.jit`` wants it. It takes no shardings of keyword arguments: where there are
        some, jit a function of the two, ``jax.jit(lambda args, kwargs: fn(*args, **kwargs), in_shardings=arguments)``.
        Arrays without elements have nothing to split: they are on every device.

        Raises:
            PlanError: for a plan on an abstract placement, which has no devices.
        """
        if self.placement.is_abstract:
            raise PlanError(
                f"the plan of {self.function} is for {self.placement}, which is abstract: it has no devices to shard "
                "over. Use plan.partition_specs() with a mesh of your own, or put the plan on devices: "
                f"dataclasses.replace(plan, placement=sbp.placement(type, ranks=...)) of shape {self.placement.shape}"
            )
        mesh = self.placement.mesh

        def of(leaf: Leaf) -> NamedSharding:
            spec = to_partition_spec(leaf.signature, self.placement, len(leaf.shape))
            return NamedSharding(mesh, spec if math.prod(leaf.shape) else PartitionSpec())

        return self._trees(of)

    def _trees(self, of: Callable[[Leaf], Any]) -> tuple[Any, Any]:
        """Something of every argument and every result, in their trees; by path where the trees are not known."""
        arguments = [leaf for leaf in self.inputs if not leaf.path.startswith("constant ")]
        if self.in_tree is None or self.out_tree is None:
            return {leaf.path: of(leaf) for leaf in arguments}, {leaf.path: of(leaf) for leaf in self.outputs}
        args, kwargs = jax.tree.unflatten(self.in_tree, [of(leaf) for leaf in arguments])
        return (args, kwargs) if kwargs else args, jax.tree.unflatten(
            self.out_tree, [of(leaf) for leaf in self.outputs]
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        table: dict[Signature, int] = {}

        def number(s: Signature) -> int:
            return table.setdefault(s, len(table))

        strategies = [[list(map(number, ins)), list(map(number, outs))] for ins, outs in self.strategies]
        data: dict[str, Any] = {"schema": SCHEMA_VERSION}
        for name in _PLAIN:
            data[name] = getattr(self, name)
        data["placement"] = {k: v for k, v in asdict(self.placement).items() if k != "is_described" or v}
        data["inputs"] = [leaf.to_json() for leaf in self.inputs]
        data["outputs"] = [leaf.to_json() for leaf in self.outputs]
        data["boxings"] = [b.to_json() for b in self.boxing_list]
        data["signatures"] = [str(s) for s in table]
        data["strategies"] = strategies
        data["nodes"] = self.nodes
        data["timeline"] = self.timeline.to_json()
        data["insight"] = self.insight.to_json()
        data["recomputed"] = self.recomputed and asdict(self.recomputed)
        if self.rewritten is not None:
            data["rewritten"] = asdict(self.rewritten)
        data["lowering"] = self.lowering
        data["priced"] = self.priced
        data["only_even"] = self.only_even
        data["argument_names"] = self.argument_names
        data["versions"] = self.versions
        if self.frontier:
            data["frontier"] = [list(point) for point in self.frontier]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "plan") -> Self:
        """The plan of JSON data. Another schema version, or missing parts, raise ``PlanError``."""
        version = data.get("schema") if isinstance(data, Mapping) else None
        if version != SCHEMA_VERSION:
            raise PlanError(
                f"{where} has schema version {version!r}; this version of sbp_jax reads {SCHEMA_VERSION}. "
                "Make the plan again with this version, or read it with the one that wrote it"
            )
        try:
            signatures = [Signature.parse(s) for s in data["signatures"]]
            insight = Insight.from_json(data["insight"])
            return cls(
                **{name: data[name] for name in _PLAIN if name not in ("unruled", "statistics")},
                unruled=[(p, s) for p, s in data["unruled"]],
                statistics=_statistics(data["statistics"]),
                frontier=[(seconds, held) for seconds, held in data.get("frontier", ())],
                placement=_placement(data["placement"]),
                inputs=[Leaf.from_json(x) for x in data["inputs"]],
                outputs=[Leaf.from_json(x) for x in data["outputs"]],
                boxing_list=[Boxing.from_json(x) for x in data["boxings"]],
                strategies=[
                    (tuple(signatures[i] for i in ins), tuple(signatures[i] for i in outs))
                    for ins, outs in data["strategies"]
                ],
                nodes=list(data["nodes"]),
                timeline=Timeline.from_json(data["timeline"]),
                make_insight=_Given(insight),
                recomputed=None if data["recomputed"] is None else Recomputed.from_json(data["recomputed"]),
                rewritten=None if data.get("rewritten") is None else Rewritten.from_json(data["rewritten"]),
                lowering=data.get("lowering", "manual"),
                priced=data.get("priced", "sum"),
                only_even=data.get("only_even", False),
                argument_names=list(map(str, data.get("argument_names", ()))),
                versions={str(k): str(v) for k, v in data.get("versions", {}).items()},
            )
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise PlanError(f"{where} is incomplete or damaged: {type(error).__name__} {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        try:
            Path(path).write_text(json.dumps(self.to_json(), indent=None, separators=(",", ":")))
        except OSError as error:
            raise PlanError(f"cannot write the plan to {str(path)!r}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan that ``save`` wrote. A missing, damaged or foreign file raises ``PlanError``."""
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise PlanError(f"cannot read a plan from {str(path)!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PlanError(f"{str(path)!r} is not a plan: it is not text") from error
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(
                f"{str(path)!r} is not a whole plan: the JSON breaks off or is damaged at line {error.lineno}, "
                f"column {error.colno} of {len(text)} characters ({error.msg})"
            ) from error
        except RecursionError as error:
            raise PlanError(f"{str(path)!r} is not a plan: its JSON is nested too deeply") from error
        return cls.from_json(data, repr(str(path)))


@dataclass(frozen=True, slots=True)
class _Given:
    """Makes an insight that is there already. No lambda: it is pickled."""

    insight: Insight

    def __call__(self) -> Insight:
        return self.insight


_PLAIN = (
    "function", "fingerprint", "compute_seconds", "boxing_seconds", "memory_per_device", "objective", "bound",
    "cluster", "solver", "planning_seconds", "unruled", "notes", "statistics",
    "hardware", "options",
)  # fmt: skip


def _placement(x: Mapping[str, Any]) -> Placement:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in x.items()}
    return Placement(**values)


def _statistics(x: Mapping[str, float]) -> dict[str, float]:
    """``clusters`` were called ``cells`` in plans of this schema that are older."""
    return {"clusters" if k == "cells" else k: v for k, v in dict(x).items()}
