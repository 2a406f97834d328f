"""What a plan says of one thing: an argument or result, a change of signature, what is made again. JSON both ways."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..signature import Signature


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array among the arguments or results: its path in the tree, whole shape, dtype, signature."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    signature: Signature

    def to_json(self) -> list[Any]:
        """Plain JSON data."""
        return [self.path, list(self.shape), self.dtype, str(self.signature)]

    @classmethod
    def from_json(cls, x: Sequence[Any]) -> Self:
        """The leaf of JSON data."""
        path, shape, dtype, signature = x
        return cls(path, tuple(shape), dtype, Signature.parse(signature))


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a boxing: the collective (or local copy) on mesh axes, the signature it leads to, bytes each device
    sends, seconds."""

    kind: str
    axes: tuple[str, ...]
    dst: Signature
    bytes: float
    seconds: float

    @property
    def is_collective(self) -> bool:
        """Whether devices talk."""
        return self.kind not in ("slice", "to_partial")


@dataclass(frozen=True, slots=True)
class Boxing:
    """One value changes its signature, ``times`` a step. ``bytes`` and ``seconds`` are for one time.

    ``source`` is the user's line that computes the value; ``user`` the one that needs the new signature. It can begin
    when node ``made_at`` has run and must have ended before node ``needed_at``, both in ``loop`` of the plan's
    timeline (-1: outside of loops).
    """

    id: int
    value_id: int
    value: str
    shape: tuple[int, ...]
    dtype: str
    src: Signature
    dst: Signature
    moves: tuple[Move, ...]
    times: float
    source: str
    user: str
    made_at: int = -1
    needed_at: int = -1
    loop: int = -1

    @property
    def bytes(self) -> float:
        """Bytes each device sends, once."""
        return sum(m.bytes for m in self.moves)

    @property
    def seconds(self) -> float:
        """Predicted seconds, once."""
        return sum(m.seconds for m in self.moves)

    @property
    def collective(self) -> str:
        """The collectives in order, ``"none"`` for a local copy."""
        return " + ".join(m.kind for m in self.moves if m.is_collective) or "none"

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that take part."""
        return tuple(dict.fromkeys(a for m in self.moves if m.is_collective for a in m.axes))

    @property
    def scope(self) -> str:
        """The name under which it appears in the compiled program's metadata."""
        return f"box{self.id}"

    def __str__(self) -> str:
        where = f" [{self.user or self.source}]" if self.user or self.source else ""
        return f"{self.value} ({self.src}) -> ({self.dst}): {self.collective}{where}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "id": self.id, "value_id": self.value_id, "value": self.value, "shape": list(self.shape),
            "dtype": self.dtype, "src": str(self.src), "dst": str(self.dst), "times": self.times,
            "source": self.source, "user": self.user,
            "moves": [[m.kind, list(m.axes), str(m.dst), m.bytes, m.seconds] for m in self.moves],
            "at": [self.made_at, self.needed_at, self.loop],
        }  # fmt: skip

    @classmethod
    def from_json(cls, x: Mapping[str, Any]) -> Self:
        """The boxing of JSON data."""
        moves = tuple(
            Move(k, tuple(axes), Signature.parse(dst), sent, seconds) for k, axes, dst, sent, seconds in x["moves"]
        )
        if not math.isfinite(float(x["times"])):
            raise TypeError("times is not a number")
        return cls(
            x["id"], x["value_id"], x["value"], tuple(x["shape"]), x["dtype"], Signature.parse(x["src"]),
            Signature.parse(x["dst"]), moves, x["times"], x["source"], x["user"], *x["at"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Rematerialisation: the nodes of the traced program, up to node ``turn``, that are made again for what reads
    them beyond it."""

    turn: int
    nodes: tuple[int, ...]

    @classmethod
    def from_json(cls, x: Mapping[str, Any]) -> Self:
        """What JSON data says is made again."""
        return cls(int(x["turn"]), tuple(x["nodes"]))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Substitutions that make the program that was planned of the traced one (``AutoParallelConfig(rewrite=...)``).

    ``moves``: in order, the name of each and its places, as nodes of the program before it. ``fingerprint`` is that of
    the program that they lead to.
    """

    moves: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    fingerprint: str

    @classmethod
    def from_json(cls, x: Mapping[str, Any]) -> Self:
        """The substitutions of JSON data."""
        moves = ((str(name), tuple(tuple(map(int, site)) for site in sites)) for name, sites in x["moves"])
        return cls(tuple(moves), str(x["fingerprint"]))
