"""From an equation to the line of the user's code that caused it."""

import functools
import os
import sys
import sysconfig
from typing import Any

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(os.sep + name + os.sep for name in ("jax", "jaxlib", "flax", "optax", "chex", "equinox", "haiku"))
_STDLIB = sysconfig.get_paths()["stdlib"]


@functools.lru_cache(maxsize=4096)
def is_user(path: str) -> bool:
    """Whether a file is the user's: outside JAX, Flax, Optax, the standard library and this library."""
    if path.startswith("<ipython-input-"):
        return True
    if path.startswith((_OWN, "<")) or any(part in path for part in _LIBRARIES):
        return False
    return not (path.startswith(_STDLIB) and "site-packages" not in path)


def user_line(info: Any) -> str:
    """``file:line (function)`` of the innermost frame outside JAX, Flax, Optax and this library; "" if none.

    A notebook's cell is named as Jupyter numbers it: ``In[4]:2 (loss)``.
    """
    traceback = getattr(info, "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        if is_user(frame.file_name):
            where = _cell(frame.file_name) or os.path.basename(frame.file_name)
            return f"{where}:{frame.line_num} ({frame.function_name})"
    return ""


def _cell(path: str) -> str | None:
    """``In[4]`` where a notebook's cell was compiled under this name; None for a file."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    found = None if shell is None else shell.compile.format_code_name(path)
    return found[1] if found else None


class Lines:
    """``user_line`` for many ops of one program: most share a traceback with others."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # with what has the id, so that it stays

    def __call__(self, info: Any) -> str:
        """The line of the user's code that an op comes from."""
        traceback = getattr(info, "traceback", None)
        known = self._known.get(id(traceback))
        if known is None:
            known = self._known[id(traceback)] = (traceback, user_line(info))
        return known[1]


def is_users_function(jaxpr: Any) -> bool:
    """Whether a called function was written by the user (then its lines are the ones to name), not by a library."""
    where = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return " at " in where and is_user(where.split(" at ", 1)[1].rsplit(":", 1)[0])
