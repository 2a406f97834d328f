"""Every public name has an entry in the reference; the strict build checks the same with what Sphinx really made."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import public  # noqa: E402


def entries() -> list[str]:
    """What the pages of the reference have directives for."""
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    return re.findall(r"^\.\. (?:auto\w+|py:\w+):: ([\w.]+)", text, re.M)


def test_every_public_name_has_an_entry() -> None:
    assert public.undocumented(entries()) == []


@pytest.mark.parametrize("name", ["sbp_jax.split", "sbp_jax.flax.jit", "sbp_jax.boxing.route", "sbp_jax.Plan"])
def test_a_missing_entry_is_found(name: str) -> None:
    assert public.undocumented([entry for entry in entries() if entry != name]) == [name]


def test_no_entry_is_listed_twice() -> None:
    assert sorted(entries()) == sorted(set(entries()))


def test_what_the_library_imports_for_itself_is_not_public() -> None:
    assert not {"sbp_jax.annotations", "sbp_jax.jax", "sbp_jax.api", "sbp_jax._pin"} & set(public.names())


def test_docstrings_become_what_sphinx_reads() -> None:
    lines = ["Of ``PartitionSpec``s.", "", "name: what it is called.", "other: not a field."]
    public.docstring(None, "class", "x", type("X", (), {"__annotations__": {"name": str}}), None, lines)
    assert lines == ["Of ``PartitionSpec``\\ s.", "", ":ivar name: what it is called.", "other: not a field."]
