"""Structures of arguments and results as plain data, to travel with a plan to another process.

A class among them goes by its name, and is looked up where the plan arrives. Structures that hold more than text and
numbers besides (a function in a training state) do not travel.
"""

import importlib
import types
from typing import Any

from jax.tree_util import PyTreeDef, default_registry

_BUILT_IN: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple, "NoneType": types.NoneType}
_PLAIN = (str, bytes, bool, int, float, complex, types.NoneType)


class _NotPlain(Exception):
    pass


def packed(tree: Any) -> Any:
    """A structure as plain data; None where it holds what is none."""
    if tree is None:
        return None
    try:
        return {"structure": _packed(tree)}
    except (_NotPlain, ImportError):
        return None


def unpacked(data: Any) -> Any:
    """The inverse; None where this process has no class of that name, or another one."""
    if data is None:
        return None
    try:
        return _unpacked(data["structure"])
    except (ImportError, AttributeError, TypeError, ValueError, KeyError):
        return None


def _packed(tree: Any) -> Any:
    node = tree.node_data()
    if node is None:
        return None
    kind, more = node
    _check(more)
    return _name_of(kind), more, [_packed(child) for child in tree.children()]


def _unpacked(data: Any) -> Any:
    if data is None:
        return PyTreeDef.from_node_data_and_children(default_registry, None, [])
    (module, name), more, children = data
    kind = _BUILT_IN[name] if not module else _class(module, name)
    return PyTreeDef.from_node_data_and_children(default_registry, (kind, more), [_unpacked(x) for x in children])


def _name_of(kind: type) -> tuple[str, str]:
    if _BUILT_IN.get(kind.__name__) is kind:
        return "", kind.__name__
    if _class(kind.__module__, kind.__qualname__) is not kind:
        raise _NotPlain
    return kind.__module__, kind.__qualname__


def _class(module: str, name: str) -> Any:
    """A class by its name; None for one that was made inside a function, or that another one hides."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _check(more: Any) -> None:
    """That what a node holds besides its children is text, numbers, and tuples, lists and dicts of them."""
    if isinstance(more, tuple | list | frozenset | set):
        for x in more:
            _check(x)
    elif isinstance(more, dict):
        for key, x in more.items():
            _check(key)
            _check(x)
    elif type(more) not in _PLAIN:
        raise _NotPlain
