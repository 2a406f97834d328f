"""The planner's search on a problem of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.

    python benchmarks/contest.py FILE [--seconds N] [--choices OUT.json] [--verbose]

FILE is JSON, gzipped or not (github.com/google/iopddl): one object ``problem`` with ``nodes`` (``intervals``,
``costs``, ``usages``), ``edges`` (``nodes``, ``costs``) and ``usage_limit``. Prints ``cost C bound B seconds S``: what
the best plan costs, the bound that is proven for every plan, and seconds by the clock without reading the file.
Without ``--seconds`` the time is the contest's for the problem where it is known, else 60 s. Exit code 1: no plan was
found that fits; 2: the file is not such a problem.
"""

import argparse
import gzip
import json
import math
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from sbp_jax.planner.budget import Budget
from sbp_jax.planner.memory.protocol import MemoryTable
from sbp_jax.planner.optimize.instance import Instance
from sbp_jax.planner.optimize.minimise import minimise

# Seconds that the contest allows.
SECONDS = {"A": 60, "G": 120, "K": 180, "M": 180, "S": 240}
_OTHERS = 60
# Costs of this much and more mean impossible.
_IMPOSSIBLE = 1e17
# What may be left undone at the end of the time: the search looks at the clock between its steps.
_MARGIN = 0.1


class BadFile(Exception):
    """The file is not a problem of the contest; says where."""


def main() -> int:
    """Print one line with cost, bound and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seconds", type=_positive, help="time limit by the clock, reading the file not counted")
    parser.add_argument("--choices", type=Path, metavar="OUT.json", help="write the list of chosen strategies")
    parser.add_argument("--verbose", action="store_true", help="what the search does, on stderr")
    args = parser.parse_args()
    if args.file is None:  # all benchmarks are run in a row
        print("nothing to do: give a FILE, one of github.com/google/iopddl")
        return 0
    try:
        name, instance = read(args.file)
    except BadFile as error:
        print(f"error: {args.file}: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()
    allowed = args.seconds or SECONDS.get(name, _OTHERS)
    found = minimise(
        instance, Budget(seconds=allowed * (1 - _MARGIN)),
        progress=lambda words: print(words, file=sys.stderr) if args.verbose else None,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if found.choice is None:
        why = "it is proven that none does" if found.impossible else f"none was found in {seconds:.1f} seconds"
        print(f"no plan fits: {why}")
        return 1
    cost = round(found.cost)
    print(f"cost {cost} bound {min(_lower(found.bound), cost)} seconds {seconds:.1f}")
    if args.choices:
        args.choices.write_text(json.dumps(list(found.choice)) + "\n")
    return 0


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number


def _lower(bound: float) -> int:
    """Costs are whole numbers: a bound is rounded up to one, less what sums of floats may have rounded."""
    if not math.isfinite(bound):
        return 0
    return math.ceil(bound - max(1e-3, 1e-12 * abs(bound)))


def read(path: Path) -> tuple[str, Instance]:
    """The problem's letter, and the problem. Raises BadFile."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        problem = json.loads(data)["problem"]
    except OSError as error:
        raise BadFile(error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise BadFile(f"the compressed file is cut short or damaged ({error})") from error
    except ValueError as error:
        raise BadFile(f"this is not JSON, or is cut short ({error})") from error
    except (KeyError, TypeError) as error:
        raise BadFile("the file has no object 'problem'") from error
    try:
        nodes, edges = problem["nodes"], problem["edges"]
        parts = nodes["intervals"], nodes["costs"], nodes["usages"], edges["nodes"], edges["costs"]
        limit = problem["usage_limit"]
        name = str(problem.get("name", "")).removesuffix(".json").rpartition("-")[2]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"the problem has no {error}: it needs nodes (intervals, costs, usages), edges (nodes, costs) "
                      "and usage_limit") from error  # fmt: skip
    if not all(isinstance(p, list) for p in parts) or not isinstance(limit, int | float) or not limit >= 0:
        raise BadFile("intervals, costs, usages and nodes must be lists, usage_limit a number that is not negative")
    return name, _instance(*parts, float(limit))


def _instance(
    intervals: list[Any], costs: list[Any], usages: list[Any], ends: list[Any], edge_costs: list[Any], limit: float
) -> Instance:
    n = len(costs)
    if not len(intervals) == len(usages) == n:
        raise BadFile(f"{n} nodes have costs, {len(usages)} usages, {len(intervals)} intervals")
    if len(ends) != len(edge_costs):
        raise BadFile(f"{len(ends)} edges have nodes, {len(edge_costs)} costs")
    by_node, tables, until = [], [], 0
    for i in range(n):
        cost, usage = _row(costs[i], f"costs of node {i}"), _row(usages[i], f"usages of node {i}")
        if not len(cost) or len(cost) != len(usage):
            raise BadFile(f"node {i} has {len(cost)} costs and {len(usage)} usages; it needs one of each a strategy")
        if (usage < 0).any():
            raise BadFile(f"node {i} has a usage below 0")
        first, end = _two(intervals[i], f"interval of node {i}")
        if first < 0:
            raise BadFile(f"the interval of node {i} begins before 0")
        by_node.append(cost)
        if first < end:
            tables.append(MemoryTable(i, -1, usage, first, end))
            until = max(until, end)
    edges: dict[tuple[int, int], np.ndarray] = {}
    for e, pair in enumerate(ends):
        a, b = _two(pair, f"nodes of edge {e}")
        if not (0 <= a < n and 0 <= b < n):
            raise BadFile(f"edge {e} joins nodes {a} and {b}; there are {n}")
        cost = _row(edge_costs[e], f"costs of edge {e}")
        if len(cost) != len(by_node[a]) * len(by_node[b]):
            raise BadFile(
                f"edge {e} has {len(cost)} costs; its nodes have {len(by_node[a])} x {len(by_node[b])} choices"
            )
        m = cost.reshape(len(by_node[a]), len(by_node[b]))
        if a == b:
            by_node[a] = by_node[a] + np.diag(m)
            continue
        a, b, m = (a, b, m) if a < b else (b, a, m.T)
        edges[a, b] = edges[a, b] + m if (a, b) in edges else m
    return Instance(by_node, edges, tables, limit, until)


def _row(values: Any, what: str) -> np.ndarray:
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFile(f"the {what} are not a list of numbers") from error
    if found.ndim != 1 or np.isnan(found).any():
        raise BadFile(f"the {what} are not a list of numbers")
    found[found >= _IMPOSSIBLE] = np.inf
    return found


def _two(values: Any, what: str) -> tuple[int, int]:
    if not isinstance(values, list) or len(values) != 2 or not all(type(x) is int for x in values):
        raise BadFile(f"the {what} are not two whole numbers")
    return values[0], values[1]


if __name__ == "__main__":
    sys.exit(main())
