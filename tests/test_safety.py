"""What must not be in the code, what files made by others cannot do, and who may read what the library writes."""

import ast
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for room in ("src", "examples", "benchmarks") for p in (ROOT / room).rglob("*.py"))

# Reading with these runs code that the data names.
_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
_BUILT_IN = {"eval", "exec", "compile", "__import__"}
_CALLS = {
    "os.system", "os.popen", "tempfile.mktemp", "subprocess.getoutput", "subprocess.getstatusoutput", "torch.load",
    "pandas.read_pickle", "numpy.core.multiarray.fromstring",
}  # fmt: skip
_YAML = {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"}
_NOT_TRUE = {"shell", "allow_pickle", "trust_remote_code"}

# Modules that import what a name says, and whose name that is.
_IMPORTERS = {
    "sbp_jax/__init__.py": "the library's own rooms",
    "sbp_jax/cli/target.py": "the module that the user names on the command line",
    "sbp_jax/distributed/__init__.py": "the room's own names",
    "sbp_jax/distributed/launch/child.py": "the program that the launcher is told to run",
    "sbp_jax/plan/trees.py": "classes of a plan that somebody unpickles, who runs its code in any case",
}
# Modules that open sockets to other machines, or listen.
_NETWORK = {
    "sbp_jax/processes/meeting.py", "sbp_jax/processes/launched.py", "sbp_jax/distributed/launch/worker.py",
    "sbp_jax/distributed/launch/ports.py", "sbp_jax/distributed/launch/child.py",
    "sbp_jax/distributed/launch/options.py",
}  # fmt: skip
_EVERYWHERE = {"0.0.0.0", "::", "[::]", "*"}


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an expression; nothing of another one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        start = dotted(node.value)
        return f"{start}.{node.attr}" if start else ""
    return ""


def faults(source: str) -> Iterator[str]:
    """What of a module runs code out of data, or hands text to a shell."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                        for a in node.names}  # fmt: skip
            named = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            named = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        else:
            continue
        for name in named:
            if name.partition(".")[0] in _MODULES:
                yield f"line {node.lineno}: import {name}"
            if name in _CALLS | _YAML:
                yield f"line {node.lineno}: from ... import {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, dot, rest = dotted(node.func).partition(".")
        name = f"{aliases.get(first, first)}{dot}{rest}"
        if name in _BUILT_IN or name.removeprefix("builtins.") in _BUILT_IN or name in _CALLS:
            yield f"line {node.lineno}: {name}(...)"
        if name in _YAML and not any(k.arg == "Loader" and "Safe" in dotted(k.value) for k in node.keywords):
            yield f"line {node.lineno}: {name}(...) without a safe loader"
        for k in node.keywords:
            if k.arg in _NOT_TRUE and not (isinstance(k.value, ast.Constant) and not k.value.value):
                yield f"line {node.lineno}: {k.arg}={ast.unparse(k.value)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_data_is_run_as_code(path: Path) -> None:
    assert list(faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("source", [
    "import pickle", "from pickle import loads", "import cloudpickle as p", "import shelve", "import marshal",
    "eval('1')", "exec(text)", "import builtins\nbuiltins.exec(text)", "compile(a, b, 'exec')", "__import__(name)",
    "import os\nos.system('ls')", "from os import system", "import tempfile as t\nt.mktemp()",
    "import subprocess\nsubprocess.run(x, shell=True)", "import subprocess as s\ns.Popen(x, shell=flag)",
    "import numpy as np\nnp.load(p, allow_pickle=True)", "import yaml\nyaml.load(f)",
    "import yaml\nyaml.load(f, Loader=yaml.Loader)",
])  # fmt: skip
def test_what_is_looked_for_is_found(source: str) -> None:
    assert list(faults(source))


@pytest.mark.parametrize("source", [
    "import re\nre.compile('a')", "step.lower(x).compile()", "model.eval()", "import numpy as np\nnp.load(p)",
    "import subprocess\nsubprocess.run([x], shell=False)", "import yaml\nyaml.load(f, Loader=yaml.SafeLoader)",
])  # fmt: skip
def test_what_is_harmless_is_not(source: str) -> None:
    assert list(faults(source)) == []


def _library() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCES:
        if path.is_relative_to(ROOT / "src"):
            yield str(path.relative_to(ROOT / "src")), ast.parse(path.read_text(encoding="utf-8"))


def test_modules_by_name_are_imported_only_where_it_is_said_why() -> None:
    wanted = {"import_module", "exec_module", "spec_from_file_location", "run_path", "run_module"}
    found = {
        name for name, tree in _library() for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in wanted
    }  # fmt: skip
    assert found == set(_IMPORTERS)


def test_only_some_modules_open_sockets_and_none_listens_everywhere() -> None:
    network = {"socket", "socketserver", "http", "urllib", "ssl", "asyncio", "requests", "xmlrpc", "ftplib", "smtplib"}
    found = set()
    for name, tree in _library():
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )  # fmt: skip
            if any(m.partition(".")[0] in network for m in modules):
                found.add(name)
            assert not (isinstance(node, ast.Constant) and node.value in _EVERYWHERE and _is_an_address(node, tree)), (
                name
            )
    assert found <= _NETWORK, found - _NETWORK


def _is_an_address(constant: ast.Constant, tree: ast.Module) -> bool:
    """Whether a text that means "every interface" is given to a call or a variable (comparing with it is all right)."""
    if constant.value in ("*", "::"):
        return False  # patterns and slices are written so, too; the two others say it for all addresses
    compared = {id(x) for node in ast.walk(tree) if isinstance(node, ast.Compare) for x in ast.walk(node)}
    return id(constant) not in compared


HOSTILE = [
    b"", b"\x00" * 64, b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.", b"[" * 200_000,
    b'{"a":' * 200_000, b"null", b"[]", b'{"version": 1e999}', b'"' + b"x" * 100_000 + b'"', b"NaN",
    b"!!python/object/apply:os.system ['true']",
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE, ids=lambda c: repr(c[:12]))
def test_a_plan_file_of_anything_else_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(sbp.PlanError):
        sbp.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("content", [*HOSTILE[:4], b"a = " + b"[" * 200_000, b"x = 1"], ids=lambda c: repr(c[:12]))
def test_a_cluster_file_of_anything_else_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cluster.toml").write_bytes(content)
    with pytest.raises(sbp.SbpError):
        sbp.cluster.load(tmp_path / "cluster.toml")


def a_plan() -> sbp.Plan:
    where = sbp.placement("cpu", ranks=range(4), axis_names="dp")
    return sbp.plan(lambda w, x: (x @ w).sum(), jnp.ones((8, 8)), jnp.ones((8, 8)), placement=where)


def test_texts_of_a_plan_from_others_stay_texts_in_its_page(tmp_path: Path) -> None:
    script = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    plain = json.loads(json.dumps(a_plan().to_json()))
    pages = 0
    for place in _texts(plain, ()):
        data = json.loads(json.dumps(plain))
        holder = data
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = script
        (tmp_path / "plan.json").write_text(json.dumps(data))
        try:
            page = sbp.Plan.load(tmp_path / "plan.json")._repr_html_()
        except sbp.SbpError:
            continue
        assert "<script>alert" not in page and "<img src=x" not in page, place
        pages += "&lt;script&gt;alert" in page
    assert pages >= 3


def _texts(data: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Where there are texts in a tree of JSON; of alike entries of a list, in the first ones."""
    if isinstance(data, str):
        yield place
    items = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    for key, value in items:
        yield from _texts(value, (*place, key))


def modes(folder: Path) -> dict[str, int]:
    """The permissions of everything in a folder, and of the folder."""
    return {
        str(p.relative_to(folder.parent)): stat.S_IMODE(p.lstat().st_mode) for p in (folder, *sorted(folder.rglob("*")))
    }


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Whatever the user's habits are: nothing is taken away from what is asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_plans_kept_on_disk_are_private(tmp_path: Path, open_umask: None) -> None:
    where = sbp.placement("cpu", ranks=range(4), axis_names="dp")
    config = sbp.AutoParallelConfig(cache=tmp_path / "plans")
    sbp.plan(lambda w, x: (x @ w).sum(), jnp.ones((8, 8)), jnp.ones((8, 8)), placement=where, config=config)
    found = modes(tmp_path / "plans")
    assert len(found) == 2 and found.pop("plans") == 0o700 and set(found.values()) == {0o600}


def test_checkpoints_are_private(tmp_path: Path, open_umask: None) -> None:
    manager = sbp.checkpoint.Manager(tmp_path / "run", keep=2)
    manager.save(1, {"w": jnp.ones(8)}, plan=a_plan())
    manager.close()
    found = modes(tmp_path / "run")
    assert len(found) > 3
    for name, mode in found.items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), (name, oct(mode))


def test_states_of_the_data_pipeline_are_only_data() -> None:
    p = sbp.placement("cpu", ranks=range(2), axis_names="dp")
    pipe = sbp.data.pipeline(np.arange(8), placement=p, sbp="S(0)", batch=4, seed=0)
    for bad in ({"version": 1}, {**pipe.state(), "epoch": "__import__('os')"}, {**pipe.state(), "data": []}):
        with pytest.raises(sbp.DataError):
            pipe.restore(bad)


def test_an_array_of_objects_is_not_read_as_data(tmp_path: Path) -> None:
    """What ``numpy.load`` would unpickle is an error that names the leaf."""
    objects: Any = np.array([{"a": 1}, None], dtype=object)
    p = sbp.placement("cpu", ranks=range(2), axis_names="dp")
    with pytest.raises(sbp.DataError, match="numbers only"):
        next(sbp.data.pipeline({"x": objects}, placement=p, sbp="S(0)", batch=2, prefetch=0))
    assert jax.device_count() >= 2
