"""Which donated arguments XLA copies: those that something reads which their replacement does not wait for.

XLA writes a replacement over its argument only if every kernel that reads the argument comes before it *by dependency*;
what order it will choose is not known yet when it decides (``CopyInsertion``, ``DependencyHloOrdering``). A weight's
gradient does not depend on the product that hands the cotangent on, which reads the weight, too: so plain gradient
descent copies all weights but the first layer's, and reads the copies. With gradients clipped by their norm every
replacement waits for all gradients, and nothing is copied.
"""

from collections.abc import Callable, Mapping, Sequence

from ...trace import Op, Program, Value
from .lifetime import Lifetime


def copied_arguments(
    program: Program, is_kept: Callable[[Op], bool], is_repeated: Callable[[Op], bool]
) -> list[tuple[Value, Value, int]]:
    """These arguments, what replaces each, and the last node that reads it without being waited for.

    ``is_kept``: whether an op's results are written to memory; ``is_repeated``: whether readers compute it themselves.
    Sets are integers here: of reads of arguments, and of the kernels that do the reading.
    """
    pairs = [(program.input_ops[i].outs[0], program.output_ops[o].ins[0]) for i, o in program.donated]
    number = {v.id: k for k, (v, _) in enumerate(pairs)}
    reads: list[tuple[int, int]] = []  # an argument by number, and the node
    readers: list[int] = []  # by read: the kernels
    inside: dict[int, int] = {}  # the reads that happen where a value is computed
    before: dict[int, int] = {}  # the kernels that a value waits for
    kernels = 0

    def read_by(op: Op) -> int:
        found = 0
        for x in op.reads:
            found |= inside.get(x.id, 0)
            if x.id in number:
                found |= 1 << len(reads)
                reads.append((number[x.id], op.index))
                readers.append(0)
        return found

    for op in program.graph.ops:
        links = [op] if isinstance(op, Op) else op.links
        waits = 0
        for x in op.reads:
            waits |= before.get(x.id, 0)
        here = [read_by(link) for link in links]
        is_passed_on = not isinstance(op, Op) and op.kind == "barrier"
        if any(here) and not is_passed_on and (not isinstance(op, Op) or is_kept(op)):
            for found in here:
                for k in _members(found):
                    readers[k] |= 1 << kernels
            waits |= 1 << kernels
            kernels += 1
            if not isinstance(op, Op) or not is_repeated(op):
                here = [0] * len(here)
        for link, found in zip(links, here, strict=True):
            for v in link.outs:
                before[v.id], inside[v.id] = waits, found
    late = {k: at for kernel, (k, at) in zip(readers, reads, strict=True)
            if isinstance(new := pairs[k][1], Value) and kernel & ~before.get(new.id, 0)}  # fmt: skip
    return [(v, new, late[k]) for k, (v, new) in enumerate(pairs)
            if k in late and isinstance(new, Value) and new is not v]  # fmt: skip


def hold_copies(
    copied: Sequence[tuple[Value, Value, int]], found: Mapping[int, Lifetime], maker: Mapping[int, Op],
    is_update: Callable[[Op], bool],
) -> None:  # fmt: skip
    """What takes memory of the copies of donated arguments (``copied_arguments``), told to the arguments' lifetimes.

    A copied argument's buffer is free until its replacement is written, so the next copy goes there, from the
    largest to the smallest: of weights of one shape, one buffer more is there in all. It is there until the buffer
    of the last is free, which that one's gradient gets, as large as it; gradients count for themselves. Measured
    on CPUs alone. ``is_update``: whether an op only makes a replacement of its gradient and the argument.
    """
    lives: list[tuple[Lifetime, Value, int]] = []
    for v, new, at in copied:
        life = found[v.id]
        life.copied_for = at
        lives.append((life, new, _gradient_made(life, new, found, maker, is_update)))
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


def _members(numbers: int) -> list[int]:
    found = []
    while numbers:
        found.append((numbers & -numbers).bit_length() - 1)
        numbers &= numbers - 1
    return found
