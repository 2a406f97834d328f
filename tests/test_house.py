"""The house's rules: imports go one way, jax's internals stay outside, no module grows past reading."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "sbp_jax"
MAX_LINES = 400

# Importable by every room, importing none.
GROUND = {"errors", "_compat", "ahead", "paths", "differences"}

# room -> the rooms it may import; it may also import what those may.
ROOMS: dict[str, set[str]] = {
    "run_dir": set(),
    "processes": {"run_dir"},
    "signature": set(),
    "placement": {"signature", "cluster"},
    "shardings": {"placement"},
    "pieces": {"signature"},
    "cluster": set(),
    "boxing": {"pieces", "shardings", "cluster"},
    "rules": {"pieces"},
    "trace": {"rules", "shardings"},
    "plan": {"shardings"},
    "drawing": set(),
    "schedules": {"drawing"},
    "actors": {"drawing"},
    "simulate": {"plan", "cluster"},
    "planner": {"trace", "rules", "boxing", "cluster", "plan", "simulate"},
    "lower": {"trace", "boxing", "plan"},
    "tensor": {"trace", "planner", "lower"},
    "report": {"plan", "cluster", "pieces"},
    "calls": {"trace", "planner", "tensor"},
    "step": {"calls", "lower", "report", "simulate"},
    "pipeline": {"planner", "lower", "schedules", "actors"},
    "api": {"calls", "step", "processes", "pipeline"},
    "flax": {"api"},
    "env": {"processes"},
    "checkpoint": {"placement", "plan", "tensor", "processes"},
    "data": {"placement", "shardings", "processes"},
    "distributed": {"api", "flax", "tensor", "boxing", "placement", "processes", "checkpoint"},
    "cli": {"api", "flax", "report", "distributed"},
}

# The same within the planner: its sub-rooms, and the files beside them.
PLANNER: dict[str, set[str]] = {
    "amounts": set(),
    "budget": set(),
    "effort": {"budget"},
    "catalogue": set(),
    "versions": set(),
    "constraints": set(),
    "pins": {"constraints"},
    "request": {"pins", "budget"},
    "graph": set(),
    "costs": {"graph"},
    "memory": {"costs", "amounts"},
    "optimize": {"memory", "budget"},
    "methods": {"optimize", "catalogue"},
    "placing": {"costs", "catalogue", "amounts"},
    "ratios": {"methods", "placing"},
    "output": {"methods", "request"},
    "decide": {"methods", "request"},
    "apart": {"methods"},
    "exposed": {"apart", "decide", "output"},
    "prepare": {"output"},
    "make": {"decide", "prepare", "exposed", "versions"},
    "remat": {"make", "effort"},
    "rewriting": {"catalogue"},
    "rewrite": {"rewriting", "remat"},
    "overlap": {"rewrite", "effort"},
    "meshes": {"memory", "pins"},
}

# And within pipelines.
PIPELINE: dict[str, set[str]] = {
    "options": set(),
    "microbatches": set(),
    "stages": set(),
    "searches": {"stages"},
    "cuts": {"options", "microbatches", "stages"},
    "programs": {"cuts"},
    "plans": {"programs"},
    "run": {"programs"},
    "spmd": {"run"},
    "make": {"plans", "run", "spmd"},
    "choose": {"make", "searches"},
}

# Houses within the house: by room of the package, its rooms.
INNER = {"planner": PLANNER, "pipeline": PIPELINE}


def reachable(room: str, rooms: dict[str, set[str]] = ROOMS) -> set[str]:
    """The rooms that ``room`` may import, directly or through others."""
    found: set[str] = set()
    queue = list(rooms[room])
    while queue:
        low = queue.pop()
        if low not in found:
            found.add(low)
            queue += rooms[low]
    return found


def imported(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in ``source``, local and type-checking ones included.

    ``package`` is the module's package, against which relative imports are resolved.
    ``from a import b`` gives ``a.b``: whether b is a module or a name, the room is in the prefix.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((node.lineno, ".".join((*prefix, alias.name))) for alias in node.names)


def room_of(path: Path) -> str:
    """``boxing/route.py`` -> boxing, ``placement.py`` -> placement."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def faults(source: str, package: tuple[str, ...], room: str) -> list[str]:
    """What ``source``, a module of ``room``, imports against the rules."""
    allowed = reachable(room) | GROUND | {room} if room in ROOMS else {room}
    found = []
    for line, name in imported(source, package):
        parts = name.split(".")
        if parts[:2] == ["jax", "_src"] and room != "_compat":
            found.append(f"line {line}: {name}: only _compat.py may reach into jax._src")
        if parts[0] != "sbp_jax":
            continue
        if len(parts) == 1 or parts[1] not in ROOMS.keys() | GROUND:
            found.append(f"line {line}: {name}: import from the room that defines it, not from the package's face")
        elif parts[1] not in allowed:
            found.append(f"line {line}: {name}: {room} may import {', '.join(sorted(allowed))}")
    return found


def inner_faults(source: str, package: tuple[str, ...], house: str, room: str) -> list[str]:
    """What ``source``, a module of ``room`` in ``house``, imports of its other rooms against the rules."""
    allowed = reachable(room, INNER[house]) | {room}
    return [
        f"line {line}: {name}: {house}/{room} may import {', '.join(sorted(allowed))}"
        for line, name in imported(source, package)
        if name.split(".")[:2] == ["sbp_jax", house] and (name.split(".")[2:3] or [""])[0] not in allowed
    ]


def files_imported(sources: dict[str, str], packages: set[str]) -> dict[str, set[str]]:
    """By dotted name of a file, the files of ``sources`` that it imports; ``packages`` are those that are folders."""
    found: dict[str, set[str]] = {}
    for file, source in sources.items():
        package = tuple(file.split(".")) if file in packages else tuple(file.split(".")[:-1])
        names = [name for _, name in imported(source, package)]
        files = {name if name in sources else name.rpartition(".")[0] for name in names}
        found[file] = files & sources.keys() - {file}
    return found


def circle(files: dict[str, set[str]]) -> list[str]:
    """Files that import each other, one after the other; empty where none do."""
    try:
        graphlib.TopologicalSorter(files).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def modules() -> list[Path]:
    """Every module of the package but the public face and ``__main__``."""
    return [p for p in sorted(PACKAGE.rglob("*.py")) if room_of(p) not in ("__init__", "__main__")]


def test_the_package_is_where_this_test_looks() -> None:
    assert (PACKAGE / "signature.py") in modules()


@pytest.mark.parametrize("rooms", [ROOMS, *INNER.values()], ids=["package", *INNER])
def test_rooms_form_no_circle(rooms: dict[str, set[str]]) -> None:
    assert [room for room in rooms if room in reachable(room, rooms)] == []


def test_files_form_no_circle() -> None:
    sources, packages = {}, set()
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("sbp_jax", *path.relative_to(PACKAGE).with_suffix("").parts))
        if path.name == "__init__.py":
            packages.add(name := name.removesuffix(".__init__"))
        sources[name] = path.read_text(encoding="utf-8")
    assert circle(files_imported(sources, packages)) == []


@pytest.mark.parametrize(
    ("a", "b", "there_is_one"),
    [
        ("from .b import f", "from .c import f", False),
        ("from .b import f", "from . import a", True),
        ("def f():\n    from . import b", "if TYPE_CHECKING:\n    from .a import F", True),
        ("from . import b, c", "from .c import g", False),
        ("import p.b", "import p.a", True),
        ("from ..p import b", "from . import a", True),
        ("from . import b", "from . import F", True),
    ],
)
def test_circles_between_files_are_found(a: str, b: str, there_is_one: bool) -> None:
    sources = {"p": "from .a import F", "p.a": a, "p.b": b, "p.c": "import numpy"}
    assert bool(circle(files_imported(sources, {"p"}))) == there_is_one


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_keeps_the_house_rules(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS.keys() | GROUND, f"{room} is no room of the house: give it a place in ROOMS first"
    source = path.read_text(encoding="utf-8")
    package = ("sbp_jax", *path.relative_to(PACKAGE).parts[:-1])
    assert faults(source, package, room) == []
    if room in INNER and (inner := path.relative_to(PACKAGE).parts[1].removesuffix(".py")) != "__init__":
        assert inner in INNER[room], f"{room}/{inner} is no room of the {room}: give it a place in INNER first"
        assert inner_faults(source, package, room, inner) == []
    assert source.count("\n") <= MAX_LINES, f"{path.name} has over {MAX_LINES} lines: split it by subject"


@pytest.mark.parametrize(
    ("source", "package", "room", "count"),
    [
        ("from .placement import Placement", "sbp_jax", "signature", 1),
        ("from .signature import Signature", "sbp_jax", "placement", 0),
        ("from . import planner", "sbp_jax", "lower", 1),
        ("from ..signature import Split", "sbp_jax.planner", "planner", 0),
        ("from .costs.op_cost import seconds", "sbp_jax.planner", "planner", 0),
        ("def f():\n    from ..planner import solve", "sbp_jax.trace", "trace", 1),
        ("import sbp_jax.api", "sbp_jax.boxing", "boxing", 1),
        ("from sbp_jax import Split", "sbp_jax.boxing", "boxing", 1),
        ("from ..errors import SbpError", "sbp_jax.cluster", "cluster", 0),
        ("from .signature import Split", "sbp_jax", "errors", 1),
        ("from jax._src import core", "sbp_jax.trace", "trace", 1),
        ("import jax._src.core as core", "sbp_jax.trace", "trace", 1),
        ("from jax._src import core", "sbp_jax", "_compat", 0),
        ("import jax.numpy as jnp\nimport numpy", "sbp_jax", "signature", 0),
    ],
)
def test_faults_are_found(source: str, package: str, room: str, count: int) -> None:
    assert len(faults(source, tuple(package.split(".")), room)) == count


# All that the search knows: plain arrays of costs, bytes by choice, errors and words.
SEARCH = {"optimize", "budget", "costs.cost_graph", "memory.protocol", "memory.infeasible", "amounts"}


def known_to(module: str) -> str:
    """``memory.protocol.FootprintLike`` -> memory.protocol; what lies in the optimize room is that room."""
    parts = module.split(".")
    return parts[0] if parts[0] in ("optimize", "amounts", "budget") else ".".join(parts[:2])


@pytest.mark.parametrize("room", ["graph", "costs", "memory", "optimize", "methods", "remat", "output", "."])
def test_the_planner_leaves_no_sum_to_blas(room: str) -> None:
    """The order in which BLAS adds hangs on the kind of CPU, and a plan on the last bit: see ``optimize/sums.py``."""
    for path in sorted((PACKAGE / "planner" / room).glob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        assert not [
            n.lineno for n in nodes if isinstance(n, ast.BinOp | ast.AugAssign) and isinstance(n.op, ast.MatMult)
        ], path
        of_numpy = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "np"}
        assert not of_numpy & {"dot", "einsum", "matmul", "tensordot", "inner", "vdot", "linalg"}, path


@pytest.mark.parametrize("module", sorted(SEARCH))
def test_the_search_knows_no_jax(module: str) -> None:
    where = PACKAGE.joinpath("planner", *module.split("."))
    for path in sorted(where.glob("*.py")) or [where.with_suffix(".py")]:
        package = ("sbp_jax", *path.relative_to(PACKAGE).parts[:-1])
        names = [name for _, name in imported(path.read_text(encoding="utf-8"), package)]
        ours = [name.removeprefix("sbp_jax.") for name in names if name.startswith("sbp_jax.")]
        planner = {known_to(name.removeprefix("planner.")) for name in ours if name.startswith("planner.")}
        assert planner <= SEARCH
        assert {name.split(".")[0] for name in ours} <= {"planner", "errors", "paths"}
        assert not [name for name in names if name.split(".")[0] in ("jax", "jaxlib")]


@pytest.mark.parametrize(
    ("source", "room", "count"),
    [
        ("from ..costs.cost_graph import CostGraph", "memory", 0),
        ("from .program import solve", "optimize", 0),
        ("from ..methods.task import Task", "optimize", 1),
        ("from ..optimize.program import solve", "costs", 1),
        ("from .. import make", "output", 1),
        ("from ...planner import make_plan", "graph", 1),
        ("def f():\n    from ..output.layers import layers", "methods", 1),
        ("from ...trace import Op", "graph", 0),
    ],
)
def test_faults_within_the_planner_are_found(source: str, room: str, count: int) -> None:
    assert len(inner_faults(source, ("sbp_jax", "planner", room), "planner", room)) == count
