"""The copies that XLA makes of donated arguments which are read after their replacements could be there.

Which those are: ``trace/replaced.py``.
"""

from collections.abc import Callable, Mapping, Sequence

from ...trace import LateReads, Op, Value
from .lifetime import Lifetime


def hold_copies(
    copied: Sequence[LateReads], found: Mapping[int, Lifetime], maker: Mapping[int, Op],
    is_update: Callable[[Op], bool],
) -> None:  # fmt: skip
    """What takes memory of the copies of donated arguments (``late_reads``), told to the arguments' lifetimes.

    A copied argument's buffer is free until its replacement is written, so the next copy goes there, from the
    largest to the smallest: of weights of one shape, one buffer more is there in all. It is there until the buffer
    of the last is free, which that one's gradient gets, as large as it; gradients count for themselves. Measured
    on CPUs alone. ``is_update``: whether an op only makes a replacement of its gradient and the argument.
    """
    lives: list[tuple[Lifetime, Value, int]] = []
    for late in copied:
        life = found[late.argument.id]
        life.copied_for = late.last
        made = _gradient_made(life, late.replacement, found, maker, is_update)
        lives.append((life, late.replacement, made))
    lives.sort(key=lambda x: (-x[0].value.size_bytes, x[0].first, x[0].value.id))
    guest: dict[int, int] = {}  # by buffer: the copy that is there
    hosted: dict[int, int] = {}
    for k, (life, _, _) in enumerate(lives):
        for j, (host, new, _) in enumerate(lives):
            if host.value.size_bytes < life.value.size_bytes:
                break
            free = host.first < life.first and life.last <= found[new.id].made
            if j != k and j not in guest and free:
                guest[j] = k
                hosted[k] = j
                break
    for k, (life, _, _) in enumerate(lives):
        end = k
        while end in guest:
            end = guest[end]
        life.copied = max(life.first, min(life.last, lives[end][2] - 1))
        if k in hosted:
            life.copied_in = lives[hosted[k]][0].value


def _gradient_made(
    life: Lifetime, new: Value, found: Mapping[int, Lifetime], maker: Mapping[int, Op], is_update: Callable[[Op], bool]
) -> int:
    """When the first value as large as an argument is there that its replacement is made of."""
    pending, made = [new], life.last
    while pending:
        v = pending.pop()
        op = maker[v.id]
        if is_update(op):
            pending += op.reads
        elif v.size_bytes >= life.value.size_bytes and not found[v.id].resident:
            made = min(made, found[v.id].made)
    return made
