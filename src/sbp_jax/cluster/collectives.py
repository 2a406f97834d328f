"""What a collective costs a group: a startup, the steps' latencies, and the bytes each device sends over its rate.

Bandwidth. A ring that spans nodes with m members in each runs through them m times, once for each member's adapter
(NCCL searches one ring, a *channel*, for each adapter), so a device's bytes leave at the slower of its link in the
node and m shares of the adapters; with one member a node, that is its own adapter. Other groups of the mesh talk at
the same time and use theirs: a share is one device's part of its node's adapters, whoever else is silent. An
all-to-all cannot share adapters: the part of the bytes whose targets are in other nodes leaves by the device's own
share (S. Jeaugey in NVIDIA/nccl-tests issue 267), while the rest moves within the node.

Latency. A ring takes p-1 steps (all-reduce twice that), as many of them across nodes as there are nodes, less one. A
tree is a chain in the node and a binary tree over nodes. Exchanges between pairs run eight at a time.

NCCL's protocols trade bandwidth for latency, and its tuner takes the best of algorithm and protocol by the same
formulas as here: NVIDIA/nccl (June 2026), ``src/graph/tuning.cc``, ``ncclTopoTuneModel``, and ``src/include/device.h``
(``NCCL_MAX_DEV_WORK_P2P_PER_BATCH``). Left out: reduction inside the switch (NVLink SHARP, InfiniBand SHARP), PAT,
the caps on LL's bandwidth by GPU, and contention in the network beyond the adapters.

A reduction to one device and a broadcast from one are chains: the whole tensor passes through every device, as many
steps as in one pass of a ring (``ncclTopoTuneModel`` counts ``nRanks`` steps of them for an all-gather's nRanks-1).

The other library, "generic", has one protocol and takes the better of a ring and of recursive halving and doubling,
log2 p steps a pass: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from .levels import Level, Link, Span, spans

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
# To and from the first device of a group. No plan has them; programs of reductions are compared with them.
ROOTED = ("reduce", "broadcast")
LIBRARIES = ("nccl", "generic")


@dataclass(frozen=True, slots=True)
class Protocol:
    """Parts of the bandwidth, a step's latency and the startup of the Simple protocol, which levels describe."""

    bandwidth: float
    latency: float
    startup: float


# Bandwidths are of a ring: "LL" (4 bytes of flag with each 4 of data), "LL128" (8 with each 120), "Simple". Latencies
# and startups are ``hwLatencies`` and ``baseLatencies`` of ``tuning.cc`` for rings, relative to Simple's: LL 0.6 of 3.4
# us in a node and 2.7 of 14 between nodes; LL128 1.9 and 4.0; startups 6.6, 14.0 and 8.4 us.
_NCCL = (Protocol(0.5, 0.19, 0.79), Protocol(0.92, 0.42, 1.67), Protocol(1.0, 1.0, 1.0))
_TREE_BANDWIDTH = 0.92  # of a ring's: ``tuning.cc``, "Various model refinements"
_PAIRS_AT_A_TIME = 8

Term = tuple[float, float]
"""Bytes per second that a device sends, and seconds however few."""


Terms = tuple[tuple[Term, ...], ...]
"""For each way in which groups of a mesh lie in the levels, the algorithms there are."""


def seconds(terms: Terms, sent_bytes: float) -> float:
    """The slowest group's time, each with its best algorithm; 0 where there are none, for groups of one device."""
    slowest = 0.0
    for ways in terms:
        slowest = max(slowest, min([sent_bytes / rate + fixed for rate, fixed in ways]))
    return slowest


def terms(levels: tuple[Level, ...], library: str, kind: str, mesh: tuple[int, ...], axes: tuple[int, ...]) -> Terms:
    """What ``seconds`` needs of a collective: all but its bytes."""
    if math.prod(mesh[a] for a in axes) <= 1:
        return ()
    return tuple(
        tuple(dict.fromkeys(_algorithms(levels, library, kind, way)))
        for way in spans(tuple(v.devices for v in levels), mesh, axes)
    )


def link(levels: tuple[Level, ...], mesh: tuple[int, ...], axes: tuple[int, ...]) -> Link:
    """What groups along ``axes`` communicate over: the slowest group's ring."""
    found = []
    for way in spans(tuple(v.devices for v in levels), mesh, axes):
        outermost = levels[len(way) - 1]
        found.append((_ring_rate(levels, way), outermost.latency_seconds, outermost.name))
    return Link(*min(found))


def _algorithms(levels: tuple[Level, ...], library: str, kind: str, way: tuple[Span, ...]) -> Iterator[Term]:
    p = way[-1].members
    outermost = levels[len(way) - 1]
    protocols = _NCCL if library == "nccl" else _NCCL[-1:]
    if kind in ("permute", "all_to_all"):
        rate, steps = (
            (_share(levels, len(way) - 1, 2), 1) if kind == "permute"
            else (_exchange_rate(levels, way), math.ceil((p - 1) / _PAIRS_AT_A_TIME))
        )  # fmt: skip
        for x in protocols:
            fixed = outermost.startup_seconds * x.startup + steps * outermost.latency_seconds * x.latency
            yield rate * x.bandwidth, fixed
        return
    passes, rate = 2 if kind == "all_reduce" else 1, _ring_rate(levels, way)
    ring = passes * sum(n * v.latency_seconds for v, n in zip(levels, _crossings(way), strict=False))
    for x in protocols:
        startup = outermost.startup_seconds * x.startup
        yield rate * x.bandwidth, startup + ring * x.latency
        if kind == "all_reduce" and library == "nccl":
            # A device sends its whole tensor up and down the tree, a ring's (p-1)/p of it twice.
            tree = (p - 1) / p * _TREE_BANDWIDTH * rate * x.bandwidth
            yield tree, startup + _tree_latency(levels, way) * x.latency
    if library == "generic" and kind not in ROOTED:
        halving = passes * math.ceil(math.log2(p)) * outermost.latency_seconds
        yield rate, outermost.startup_seconds + halving


def _crossings(way: tuple[Span, ...]) -> list[int]:
    """Of the p-1 steps of one pass of a ring, how many cross each level."""
    units = [way[-1].members, *(s.units for s in way)]
    return [inner - outer for inner, outer in itertools.pairwise(units)]


def _tree_latency(levels: tuple[Level, ...], way: tuple[Span, ...]) -> float:
    """Up and down: a chain within the innermost units, a binary tree over them."""
    units = [way[-1].members, *(s.units for s in way)]
    total = (way[0].members - 1) * levels[0].latency_seconds
    for level, inner, outer in zip(levels[1:], units[1:], units[2:], strict=False):
        total += math.ceil(math.log2(inner / outer)) * level.latency_seconds
    return 2 * total


def _ring_rate(levels: tuple[Level, ...], way: tuple[Span, ...]) -> float:
    """Bytes per second each device sends in a ring: the slowest level it crosses, members inside sharing links."""
    rate, members = math.inf, 1
    for i, (span, crossed) in enumerate(zip(way, _crossings(way), strict=True)):
        if crossed:
            rate = min(rate, members * _share(levels, i, span.members))
        members = span.members
    return rate if rate < math.inf else _share(levels, 0, 1)


def _exchange_rate(levels: tuple[Level, ...], way: tuple[Span, ...]) -> float:
    """Bytes per second each device sends in an all-to-all: levels work side by side on what each must carry."""
    p, members, slowest = way[-1].members, 1, 0.0
    for i, span in enumerate(way):
        part = (span.members - members) / (p - 1)
        slowest = max(slowest, part / _share(levels, i, span.members))
        members = span.members
    return 1 / slowest


def _share(levels: tuple[Level, ...], at: int, members: int) -> float:
    """One device's part of the links of a level, in bytes per second that collectives reach.

    ``members`` of the group in one unit matter where links are between pairs.
    """
    level = levels[at]
    rate = level.bytes_per_second
    if level.uplinks is not None:
        rate *= level.uplinks / (levels[at - 1].devices or 1)
    if level.pair_bytes_per_second is not None:
        rate = min(rate, level.pair_bytes_per_second * max(members - 1, 1))
    return rate * level.efficiency
