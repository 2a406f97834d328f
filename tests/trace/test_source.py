"""Lines of the user's code: files, and cells of notebooks."""

import sys
from types import SimpleNamespace

import pytest

from sbp_jax.trace.source import is_user, user_line


def info(*files: str) -> SimpleNamespace:
    """What an equation knows of its origin, innermost frame first."""
    frames = [SimpleNamespace(file_name=name, line_num=7, function_name="loss") for name in files]
    return SimpleNamespace(traceback=SimpleNamespace(frames=frames))


def test_a_file_is_named_by_its_last_part() -> None:
    assert user_line(info("/lib/site-packages/jax/numpy.py", "/home/me/model.py")) == "model.py:7 (loss)"


def test_a_cell_is_named_as_jupyter_numbers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"/tmp/ipykernel_1/99.py": ("Cell", "In[4]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert user_line(info("/tmp/ipykernel_1/99.py")) == "In[4]:7 (loss)"
    assert user_line(info("/home/me/model.py")) == "model.py:7 (loss)"


def test_lines_typed_into_ipython_are_the_users() -> None:
    assert is_user("<ipython-input-3-0a1b2c>") and not is_user("<string>")
