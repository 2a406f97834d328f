"""Factor maps as text: ``"b (h d), h d k -> b k"``, read, checked, and made into ``Factors``.

Operands and results are separated by commas, dims by spaces. A dim is a name, several in parentheses (slowest
first), or ``_`` for one that is never split. A name stands for one length wherever it appears.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import SignatureError
from ..signature import REDUCE_OPS, ReduceOp
from .base import Builder, Dims, Factors, Linear

Dim = tuple[str, ...]
_TOKEN = re.compile(r"\s*(->|[(),]|[A-Za-z][A-Za-z0-9_]*|_|1|\S)")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_UNSPLIT = ("_", "1")


@dataclass(frozen=True, slots=True)
class FactorMap:
    """A map that was read: the names of every dim of every operand and result, and what becomes of the names."""

    text: str
    ins: tuple[tuple[Dim, ...], ...]
    outs: tuple[tuple[Dim, ...], ...]
    reduced: tuple[tuple[str, ReduceOp], ...] = ()
    whole: frozenset[str] = frozenset()
    linear: tuple[Linear, ...] = ()

    def factors(self, ins: Sequence[tuple[int, ...]], outs: Sequence[tuple[int, ...]]) -> Factors:
        """The map for operands and results of these shapes; ``SignatureError`` where they do not fit it."""
        sizes = self._sizes(ins, outs)
        b, reduced = Builder(), dict(self.reduced)
        ids = {
            name: b.factor(n, blocked=name in self.whole, reduced=reduced.get(name)) for name, n in sizes.items()
        }  # fmt: skip

        def dims(side: tuple[Dim, ...], shape: tuple[int, ...]) -> Dims:
            return tuple(
                b.factor(n, blocked=True) if dim == () else tuple(f for name in dim for f in ids[name])
                for dim, n in zip(side, shape, strict=True)
            )

        left = [dims(side, shape) for side, shape in zip(self.ins, ins, strict=True)]
        right = [dims(side, shape) for side, shape in zip(self.outs, outs, strict=True)]
        return b.build(left, right, self.linear, flops=float(math.prod(sizes.values())))

    def over(self, mapped: Sequence[bool]) -> "FactorMap":
        """The map with a new leading dim in the ``mapped`` operands and in every result."""
        used = {n for side in (*self.ins, *self.outs) for dim in side for n in dim}
        name = next(n for k in itertools.count() if (n := f"v{k}") not in used)
        ins = tuple(((name,), *side) if m else side for side, m in zip(self.ins, mapped, strict=True))
        text = f"{self.text} over {name}"
        return replace(self, text=text, ins=ins, outs=tuple(((name,), *side) for side in self.outs))

    def _sizes(self, ins: Sequence[tuple[int, ...]], outs: Sequence[tuple[int, ...]]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        open_groups: list[tuple[Dim, int, str]] = []
        for kind, sides, shapes in (("operand", self.ins, ins), ("result", self.outs, outs)):
            if len(sides) != len(shapes):
                raise self._misfit(f"it has {len(sides)} {kind}(s), the call has {len(shapes)}")
            for k, (side, shape) in enumerate(zip(sides, shapes, strict=True)):
                if len(side) != len(shape):
                    raise self._misfit(f"{kind} {k} has {len(side)} dim(s) in it, but shape {tuple(shape)}")
                open_groups += [(dim, n, f"{kind} {k}") for dim, n in zip(side, shape, strict=True) if dim]
        while open_groups:
            left = []
            for dim, n, where in open_groups:
                unknown = [name for name in dim if name not in sizes]
                known = math.prod(sizes[name] for name in dim if name in sizes)
                if len(unknown) > 1:
                    left.append((dim, n, where))
                elif unknown and known and n % known == 0:
                    sizes[unknown[0]] = n // known
                elif unknown or known != n:
                    what = f"{' x '.join(dim)} is {known}" if not unknown else f"{n} is not a multiple of {known}"
                    raise self._misfit(f"a dim of {where} is {n} long, but {what}")
            if len(left) == len(open_groups):
                dim, n, where = left[0]
                raise self._misfit(f"the lengths in ({' '.join(dim)}) of {where} follow from no other dim")
            open_groups = left
        return sizes

    def _misfit(self, why: str) -> SignatureError:
        return SignatureError(f"the factor map {self.text!r} does not fit the call: {why}")


def parse(
    text: str,
    reduced: Mapping[str, ReduceOp] | None = None,
    whole: Sequence[str] = (),
    linear: Sequence[int | Sequence[int] | Linear] = (),
) -> FactorMap:
    """Read a map; ``SignatureError`` with a line that points at what is wrong with it."""
    sides = _read(text)
    if len(sides) != 2:
        raise _error(text, max(0, text.rfind("->")), "one -> stands between operands and results")
    ins, outs = sides
    sums: dict[str, ReduceOp] = dict(reduced or {})
    left, right = ({name for dims in side for dim in dims for name in dim} for side in sides)
    for name, op in sums.items():
        if name not in left or op not in REDUCE_OPS:
            raise SignatureError(
                f"reduced={{{name!r}: {op!r}}}: names of operands of {text!r}, each with one of {', '.join(REDUCE_OPS)}"
            )
    for name in (*sums, *whole):
        if name not in left | right:
            raise SignatureError(f"{name!r} is not in the factor map {text!r}")
    for name in sorted(right - left - set(whole)):
        raise _error(text, _at(text, name, last=True),
                     f"{name} is in no operand, so no device could make only its piece: write _")  # fmt: skip
    lost = {n for dims in outs for n in left if not any(n in dim for dim in dims)} - set(sums) - set(whole)
    for name in sorted(lost):
        raise _error(text, _at(text, name),
                     f"{name} is missing from a result: say reduced={{{name!r}: 'sum'}} where the pieces' results add "
                     f"up to it, or whole=({name!r},)")  # fmt: skip
    return FactorMap(text, ins, outs, tuple(sums.items()), frozenset(whole), _linear(text, linear, len(ins)))


def _linear(text: str, given: Sequence[int | Sequence[int] | Linear], count: int) -> tuple[Linear, ...]:
    found = []
    for item in given:
        one = item if isinstance(item, Linear) else Linear(frozenset([item] if isinstance(item, int) else item))
        if not one.operands or any(not 0 <= i < count for i in one.operands):
            raise SignatureError(f"linear={given!r}: {text!r} has the operands 0 to {count - 1}")
        found.append(one)
    return tuple(found)


def _read(text: str) -> list[tuple[tuple[Dim, ...], ...]]:
    sides: list[list[list[Dim]]] = [[[]]]
    group: list[str] | None = None
    opened = 0
    for match in _TOKEN.finditer(text.rstrip()):
        token, at = match.group(1), match.start(1)
        dims = sides[-1][-1]
        if group is not None and token in ("->", ",", "(", *_UNSPLIT):
            raise _error(text, at, "parentheses hold names only, and close before anything else")
        if token == "->":
            sides.append([[]])
        elif token == ",":
            sides[-1].append([])
        elif token == "(":
            group, opened = [], at
        elif token == ")":
            if not group:
                raise _error(text, at, "nothing to close" if group is None else "empty parentheses: write _")
            dims.append(tuple(group))
            group = None
        elif token in _UNSPLIT:
            dims.append(())
        elif not _NAME.fullmatch(token):
            raise _error(text, at, "names, parentheses, _ , commas and -> make a factor map")
        elif any(token in dim for dim in dims) or token in (group or ()):
            raise _error(text, at, f"{token} is twice in one tensor")
        elif group is not None:
            group.append(token)
        else:
            dims.append((token,))
    if group is not None:
        raise _error(text, opened, "not closed")
    if sides[0] == [[]]:  # no operands
        sides[0] = []
    return [tuple(map(tuple, side)) for side in sides]


def _at(text: str, name: str, last: bool = False) -> int:
    places = [m.start() for m in re.finditer(rf"\b{name}\b", text)]
    return places[-1 if last else 0]


def _error(text: str, at: int, why: str) -> SignatureError:
    return SignatureError(f"malformed factor map: {why}\n  {text}\n  {' ' * at}^")
