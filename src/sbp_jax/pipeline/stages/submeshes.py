"""Which sub-meshes of a cluster a stage may have, and which devices the chosen ones get.

Zheng et al., arXiv 2201.12023, section 5.2: of N nodes with M devices each, stages get (1, 1), (1, 2), (1, 4), ..., (1,
M) and (2, M), (3, M), ..., (N, M). Their appendix proves that sub-meshes of these shapes whose sizes add up to N * M
always cover the cluster, for M a power of two. ``assign`` is such a cover; here M may be any number, and a stage within
a node has a divisor of M.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...errors import PlanError

# Stages that share a node, by number.
Node = list[int]


@dataclass(frozen=True, slots=True)
class Submesh:
    """Some devices of one node, or all devices of several; ``str()`` is as in ``2x8``."""

    nodes: int
    devices_per_node: int

    @property
    def devices(self) -> int:
        """How many devices it has."""
        return self.nodes * self.devices_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices_per_node}"


def submesh_options(nodes: int, devices_per_node: int) -> tuple[Submesh, ...]:
    """The sub-meshes that a stage may have, smallest first: divisors of a node, then whole nodes.

    Raises:
        PlanError: a number below 1.
    """
    _check(nodes, devices_per_node)
    within = [Submesh(1, d) for d in range(1, devices_per_node + 1) if devices_per_node % d == 0]
    return (*within, *(Submesh(n, devices_per_node) for n in range(2, nodes + 1)))


def assign(submeshes: Sequence[Submesh], nodes: int, devices_per_node: int) -> tuple[tuple[int, ...], ...]:
    """The devices of each stage: no device in two stages, and all used if the sizes add up to the cluster's.

    Device d of node n is n * devices_per_node + d. Stages of whole nodes get nodes that follow each other; smaller ones
    share nodes, with the stages next to them where that leaves no gap. Nodes are in the order of the first stage that
    has them. In a node, larger stages come first, so that each begins at a multiple of its size if sizes divide each
    other.

    Where the sizes that are smaller than a node divide each other (always so for powers of two), there is a cover: a
    stage goes to the first node with room. If it went to a later one, all that node's stages are larger than what the
    first has left, so that what nodes have left, ordered, adds up to less than the next larger size. For other divisors
    all ways are tried, and there may be none: 30, 20, 20, 12, 12, 12, 12 and 2 do not fill two nodes of 60. No smaller
    nodes are known where this happens.

    Raises:
        PlanError: a sub-mesh that is none of ``submesh_options``; more devices than there are; no cover.
    """
    _check(nodes, devices_per_node)
    options = submesh_options(nodes, devices_per_node)
    wrong = sorted({str(s) for s in submeshes if s not in options})
    if wrong:
        raise PlanError(
            f"sub-mesh {', '.join(wrong)} is none of {nodes} nodes with {devices_per_node} devices each: "
            f"possible are {', '.join(map(str, options))}"
        )
    used = sum(s.devices for s in submeshes)
    if used > nodes * devices_per_node:
        raise PlanError(
            f"{len(submeshes)} sub-meshes have {used} devices, {nodes} nodes of {devices_per_node} have "
            f"{nodes * devices_per_node}: give at most as many"
        )
    whole = {k for k, s in enumerate(submeshes) if s.devices_per_node == devices_per_node}
    small = {k: s.devices for k, s in enumerate(submeshes) if k not in whole}
    room = nodes - sum(submeshes[k].nodes for k in whole)
    shared = _shared(small, room, devices_per_node)
    if shared is None:
        sizes = ", ".join(f"{n} of {size}" for size, n in sorted(Counter(small.values()).items(), reverse=True))
        raise PlanError(
            f"stages with {sizes} devices do not fit in {room} nodes of {devices_per_node} devices, though there are "
            "as many: take sizes that divide each other"
        )
    ranks: list[tuple[int, ...]] = [()] * len(submeshes)
    at = 0
    for members in sorted([*([k] for k in whole), *shared], key=min):
        for k in sorted(members, key=lambda k: (-submeshes[k].devices, k)):
            ranks[k] = tuple(range(at, at + submeshes[k].devices))
            at += submeshes[k].devices
        # A node that is not full ends all the same.
        at += -at % devices_per_node
    return tuple(ranks)


def _check(nodes: int, devices_per_node: int) -> None:
    for name, number in (("nodes", nodes), ("devices_per_node", devices_per_node)):
        if number < 1:
            raise PlanError(f"{name}={number}: give at least 1")


def _shared(sizes: dict[int, int], nodes: int, per_node: int) -> list[Node] | None:
    """Stages smaller than a node, by node; None where they do not fit."""
    for rule in (max, min):
        # The node opened last has the stages just before; the first with room leaves no gap that could be avoided.
        found = _in_order(sizes, nodes, per_node, rule)
        if found is not None:
            return found
    return _packed(sizes, nodes, per_node)


def _in_order(
    sizes: dict[int, int], nodes: int, per_node: int, rule: Callable[[Iterable[int]], int]
) -> list[Node] | None:
    """Stage after stage into a node with room, of these by ``rule``: ``max`` is the last opened, ``min`` the first."""
    found: list[Node] = []
    left: list[int] = []
    for k, size in sizes.items():
        usable = [n for n, free in enumerate(left) if free >= size]
        if not usable:
            if len(found) == nodes:
                return None
            found.append([])
            left.append(per_node)
            usable = [len(found) - 1]
        node = rule(usable)
        found[node].append(k)
        left[node] -= size
    return found


def _packed(sizes: dict[int, int], nodes: int, per_node: int) -> list[Node] | None:
    """Any way that fits, by trying all: node after node, each with the largest size that is left."""
    # Single devices that stay free, so that every node is filled exactly.
    free = nodes * per_node - sum(sizes.values())
    counts = Counter(sizes.values())
    counts[1] += free
    kinds = sorted(counts, reverse=True)
    failed: set[tuple[int, ...]] = set()

    def fill(left: tuple[int, ...], kind: int, room: int) -> list[Counter[int]] | None:
        """Nodes filled from ``left``; ``room`` of the first is not, and takes only sizes from ``kind`` on."""
        if room == 0:
            if not any(left):
                return [Counter()]
            if left in failed:
                return None
            first = next(i for i, n in enumerate(left) if n)
            rest = fill(_less(left, first), first, per_node - kinds[first])
            if rest is None:
                failed.add(left)
                return None
            rest[-1][kinds[first]] += 1
            return [*rest, Counter()]
        for i in range(kind, len(kinds)):
            if left[i] and kinds[i] <= room:
                rest = fill(_less(left, i), i, room - kinds[i])
                if rest is not None:
                    rest[-1][kinds[i]] += 1
                    return rest
        return None

    ways = fill(tuple(counts[k] for k in kinds), 0, 0)
    if ways is None:
        return None
    of_size = {size: [k for k, s in sizes.items() if s == size] for size in kinds}
    return [
        node
        for way in reversed(ways)
        if (node := [of_size[size].pop(0) for size, n in way.items() for _ in range(n) if of_size[size]])
    ]


def _less(left: tuple[int, ...], kind: int) -> tuple[int, ...]:
    return (*left[:kind], left[kind] - 1, *left[kind + 1 :])
