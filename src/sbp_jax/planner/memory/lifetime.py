"""From when to when one value of a program takes memory."""

from dataclasses import dataclass, field

from ...trace import Value


@dataclass(slots=True)
class Lifetime:
    """One value. ``made``, ``first`` and ``last`` are positions of nodes; ``last`` counts readers that compute it
    again as well, ``kept`` those that read it from memory: less than ``made`` where none does. ``whole``: when all of
    it is there, for a loop's stack the loop's end.

    ``named``: another name of its operand's buffer. ``resident``: an argument, held over the whole step. ``home``: it
    is written where a result of the program goes: the buffer of a donated argument, or one of the result's own.
    ``copied``: an argument that is read from a copy (``replaced.py``) until then; -1 for the others. ``copied_for``:
    the node that it is copied for. ``copied_in``: the argument in whose buffer the copy is, where it fits.
    ``inside``: it is in that buffer too, as what a loop carries. ``fluid``: its kernel makes of it what is read, slices
    of it alone where those are wanted. ``wanted``: the last time that it is read from memory, of an argument too.
    ``place``: the result in whose buffer it is held, where it fits, before that is written there. ``reads``: first and
    last time by reading node.
    """

    value: Value
    made: int
    whole: int
    first: int
    last: int
    kept: int
    named: bool = False
    resident: bool = False
    copied: int = -1
    copied_for: int = -1
    copied_in: Value | None = None
    home: bool = False
    inside: bool = False
    fluid: bool = False
    wanted: int = 0
    place: Value | None = None
    reads: dict[int, tuple[int, int]] = field(default_factory=dict)
