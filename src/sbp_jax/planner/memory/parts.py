"""What part of a value a device holds, by the signatures in which it is made and read: numbers from 0 to 1."""

from collections.abc import Callable

import numpy as np

from ...rules.widen import B, Code
from ..costs.op_cost import CostModel


class Parts:
    """Parts by code, and by two codes, each computed once."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._codes: dict[object, tuple[Code, ...]] = {}
        self._shares: dict[object, np.ndarray] = {}
        self._pairs: dict[object, dict[str, np.ndarray]] = {}

    def codes(self, key: object, make: Callable[[], list[Code]]) -> tuple[Code, ...]:
        """The codes that a key stands for; equal ones are one object."""
        found = self._codes.get(key)
        if found is None:
            found = make()
            found = self._codes[key] = self._codes.setdefault(tuple(found), tuple(found))
        return found

    def _padded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What parts of a value depend on besides codes: its shape, where pieces may be padded."""
        return shape if self.model.uneven else ()

    def shares(self, shape: tuple[int, ...], codes: tuple[Code, ...]) -> np.ndarray:
        """The parts of a value that a device holds, by code."""
        key = self._padded(shape), codes
        found = self._shares.get(key)
        if found is None:
            found = self._shares[key] = np.array([self.model.share(shape, c) for c in codes])
        return found

    def _common(self, made: tuple[Code, ...], codes: tuple[Code, ...]) -> np.ndarray:
        """The part that is gathered where it is cut again: what both have in pieces stays in pieces."""
        left, right = np.array(made)[:, None, :], np.array(codes)[None, :, :]
        sizes = np.where((left == right) & (left >= 0), np.array(self.model.axis_sizes), 1)
        return 1.0 / sizes.prod(axis=-1)

    def pairs(self, shape: tuple[int, ...], made: tuple[Code, ...], codes: tuple[Code, ...]) -> dict[str, np.ndarray]:
        """By what is held: the parts, for a value made and boxed in any two of these codes. Not those all zero."""
        key = self._padded(shape), made, codes
        found = self._pairs.get(key)
        if found is None:
            number: dict[Code, int] = {}
            left = np.array([number.setdefault(c, len(number)) for c in made])[:, None]
            right = np.array([number.setdefault(c, len(number)) for c in codes])[None, :]
            own, copy = self.shares(shape, made)[:, None], self.shares(shape, codes)[None, :]
            same = left == right
            cut = ~same & _is_slice(made, codes)

            def padded(of: tuple[Code, ...], parts: np.ndarray) -> np.ndarray | bool:
                if not self.model.uneven:
                    return False
                return parts * np.array([self.model.pieces(c) for c in of]).reshape(parts.shape) > 1 + 1e-9

            smaller, larger = ~same & ~cut & (copy <= own), ~same & ~cut & (copy > own)
            moved = smaller * (_rearranged(made, codes) | padded(made, own) | padded(codes, copy)) * own
            every = {
                "same": same * own, "source of smaller": smaller * own, "source of larger": larger * own,
                "smaller": smaller * copy, "larger": larger * copy, "more": ~same * copy,
                "slice": cut * copy, "source of slice": cut * own,
                "moved": moved, "more moved": moved,
                "gathered": larger * _outermost(made, codes) * copy,
                "laid out": _outermost(made, codes, whole=False) * self._common(made, codes),
                "padding": larger * padded(made, own) * copy,
            }  # fmt: skip
            found = self._pairs[key] = {what: m for what, m in every.items() if m.any()}
        return found


def is_cut_alike(made: tuple[Code, ...], codes: tuple[Code, ...]) -> np.ndarray:
    """Where pieces have the same shape in memory: a partial value is as large as a whole one."""
    left, right = np.maximum(made, B)[:, None, :], np.maximum(codes, B)[None, :, :]
    return (left == right).all(axis=-1)


def _is_slice(made: tuple[Code, ...], codes: tuple[Code, ...]) -> np.ndarray:
    """Where a copy is a slice of what the device has: nothing is sent."""
    left, right = np.array(made)[:, None, :], np.array(codes)[None, :, :]
    return ((left == right) | ((left == B) & (right >= 0))).all(axis=-1)


def _outermost(made: tuple[Code, ...], codes: tuple[Code, ...], whole: bool = True) -> np.ndarray:
    """Where what is gathered has the gathered dim outermost in memory, which it is not in the program: on its way into
    a loop it is copied, other kernels read it as it is. Not ``whole``: pieces that are cut of that count, too.
    """
    left, right = np.array(made)[:, None, :], np.array(codes)[None, :, :]
    return ((left > 0) & ((right == B) if whole else (left != right))).any(axis=-1)


def _rearranged(made: tuple[Code, ...], codes: tuple[Code, ...]) -> np.ndarray:
    """Where a collective wants its operand in an order of its own: all pieces that one device is sent side by side.

    Reducing and scattering along any dim but the first, and exchanging one split for another (XLA: collectives along
    other dims get a layout in which that dim is the slowest).
    """
    left, right = np.array(made)[:, None, :], np.array(codes)[None, :, :]
    return (((left < B) & (right > 0)) | ((left >= 0) & (right >= 0) & (left != right))).any(axis=-1)
