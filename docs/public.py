"""The public names, and that every one has its place in the reference."""

import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import sbp_jax
import sbp_jax.actors
import sbp_jax.checkpoint
import sbp_jax.data
import sbp_jax.distributed
import sbp_jax.env
import sbp_jax.flax
import sbp_jax.schedules

# The modules of which every name is public, by the name that users type.
NAMESPACES: dict[str, ModuleType] = {
    "sbp_jax": sbp_jax,
    "sbp_jax.flax": sbp_jax.flax,
    "sbp_jax.data": sbp_jax.data,
    "sbp_jax.env": sbp_jax.env,
    "sbp_jax.distributed": sbp_jax.distributed,
    "sbp_jax.checkpoint": sbp_jax.checkpoint,
    "sbp_jax.schedules": sbp_jax.schedules,
    "sbp_jax.actors": sbp_jax.actors,
}
# What users call of rooms that are otherwise the library's own.
SINGLE = (
    *(f"sbp_jax.boxing.{name}" for name in ("route", "Route", "Step", "reduction", "Reduction", "is_sum", "of_route")),
    *(f"sbp_jax.cluster.{name}" for name in ("Device", "Level", "Link", "device", "get", "load", "presets", "to_toml")),
    "sbp_jax.planner.solvers",
)


def names() -> list[str]:
    """Every public name with its namespace: ``sbp_jax.split``, ``sbp_jax.boxing.route``."""
    found = list(SINGLE)
    for space, module in NAMESPACES.items():
        for name, value in vars(module).items():
            if not name.startswith("_") and not isinstance(value, ModuleType) and _is_ours(value):
                found.append(f"{space}.{name}")
    return sorted(found)


def _is_ours(value: Any) -> bool:
    """Whether a value of a public module is the library's, not something that the module imports for itself."""
    home = getattr(value, "__module__", None) or type(value).__module__
    return home.startswith("sbp_jax") or type(value).__module__.startswith("sbp_jax")


def undocumented(documented: Iterable[str]) -> list[str]:
    """The public names that are not among those documented."""
    there = set(documented)
    return [name for name in names() if name not in there]


def check(app: Any, env: Any) -> None:
    """Sphinx's hook: a public name without an entry in the reference is a warning, hence an error."""
    from sphinx.util import logging

    missing = undocumented(env.get_domain("py").objects)
    if missing:
        logging.getLogger(__name__).warning("public names without an entry in docs/api/: %s", ", ".join(missing))


# Classes under another name than users type.
_ALSO = {"PlanData": "Plan"}
_ENTRY = re.compile(r"^([a-z_]+): \S")


def docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's hook: what the docstrings write for readers of the source, as reStructuredText wants it.

    A class's ``field: text`` lines become a list of its fields, and "``PartitionSpec``s" the plural of a name.
    """
    fields = set(getattr(obj, "__annotations__", ())) if what == "class" else set()
    lines[:] = [re.sub(r"``(s|es)\b", r"``\\ \1", line) for line in lines]
    lines[:] = [f":ivar {line}" if (m := _ENTRY.match(line)) and m[1] in fields else line for line in lines]


def links(app: Any, name: str, source: list[str]) -> None:
    """Sphinx's hook: links that are right in the repository lead to the pages made of those files."""
    source[0] = source[0].replace("](../benchmarks/README.md)", "](benchmark_scripts.md)")
    if name.startswith("notebooks/"):
        source[0] = source[0].replace("](../docs/", "](../")
        source[0] = re.sub(r"\]\((\d\d_\w+)\.md\)", r"](\1.ipynb)", source[0])


def resolve(app: Any, env: Any, node: Any, target: Any) -> Any:
    """Sphinx's hook: where a type hint names the module that defines a class, lead to the name that users type."""
    text = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    last = text.rsplit(".", 1)[-1]
    last = _ALSO.get(last, last)
    # Of a name that several have (``Pipeline``), that of the module which the hint names, or else the page is about.
    about = (text if text != last else node.get("py:module") or "") + "."
    spaces = (*NAMESPACES, "sbp_jax.boxing", "sbp_jax.cluster")
    for space in sorted(spaces, key=lambda space: -len(space) if about.startswith(f"{space}.") else 0):
        if f"{space}.{last}" in domain.objects and (text == last or text.startswith("sbp_jax.")):
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"{space}.{last}", node, target)
    return None
