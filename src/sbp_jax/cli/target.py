"""From ``module:function`` on the command line to a function with its arguments, ready to be planned."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ..api import AutoParallelConfig, ParallelFunction, auto_parallel
from ..errors import SbpError
from ..placement import Placement
from .base import blaming
from .shapes import parse_shapes

_DEFAULT = AutoParallelConfig()


@dataclass(frozen=True, slots=True)
class Target:
    """A function, what it is called with, and what its decorator said of it.

    ``has_objects``: it takes Flax nnx objects, which are updated in place; then ``in_sbp`` are pins by variable path.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    name: str
    donate: tuple[int, ...] = ()
    static: tuple[int, ...] = ()
    in_sbp: Any = None
    out_sbp: Any = None
    placement: Placement | int | str | None = None
    config: AutoParallelConfig = _DEFAULT
    has_objects: bool = False


def load(reference: str, option: str = "") -> Any:
    """What ``module:name`` or ``path/to/file.py:name`` refers to; ``name`` may have dots.

    Modules are found as Python finds them, and from the current folder. Raises ``SbpError`` that names what there is.
    """
    said = f"{option} {reference!r}".strip()
    where, colon, name = reference.rpartition(":")
    if not colon or not where or not name:
        raise SbpError(f"{said}: write module:function, as mypackage.train:train_step, or path/to/file.py:train_step")
    found: Any = _file(where, said) if where.endswith(".py") else _module(where, said)
    reached = where
    for part in name.split("."):
        if not hasattr(found, part):
            has = sorted(n for n in vars(found) if not n.startswith("_") and callable(getattr(found, n, None)))
            near = difflib.get_close_matches(part, has, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise SbpError(f"{said}: {reached} has no {part!r}{hint} It has: {', '.join(has) or 'no functions'}")
        found, reached = getattr(found, part), f"{reached}.{part}"
    if not callable(found):
        raise SbpError(f"{said} is no function: it is of type {type(found).__name__}")
    return found


def _module(name: str, said: str) -> Any:
    _see(str(Path.cwd()))
    try:
        known = importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        known = False
    if not known:
        as_file = Path(*name.split(".")).with_suffix(".py")
        beside = sorted(p.stem for p in Path.cwd().glob("*.py"))
        near = difflib.get_close_matches(name, beside, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SbpError(
            f"{said}: there is no module {name!r}{hint} Modules are looked for in {str(Path.cwd())!r} and where "
            f"Python finds them; a file is given as {as_file}:..."
        )
    with blaming(f"importing {name}"):
        return importlib.import_module(name)


def _file(path: str, said: str) -> Any:
    file = Path(path).resolve()
    if not file.is_file():
        folder = file.parent
        near = difflib.get_close_matches(file.name, [p.name for p in folder.glob("*.py")], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SbpError(f"{said}: there is no file {path!r}{hint}")
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").is_file():  # a module of a package, which may import its neighbours
        parts.insert(0, root.name)
        root = root.parent
    _see(str(root))
    name = ".".join(parts)
    with blaming(f"importing {path}"):
        if len(parts) > 1:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise SbpError(f"{said}: {path!r} is no Python file")
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(name)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name) if before is None else sys.modules.update({name: before})
            raise
        return module


def _see(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def example_arguments(shapes: str | None, maker: str | None, real: bool = False) -> tuple[Any, ...]:
    """The arguments by ``--shapes``, or by calling ``--args``: on shapes alone where that works and not ``real``.

    A tuple or list that ``--args`` returns is one entry for each argument, anything else the only one.
    """
    if (shapes is None) == (maker is None):
        raise SbpError(
            "say what the function is called with: --shapes 'f32[8,128], {w: bf16[4,4]}', or --args module:function, "
            "a function that returns the arguments" + (" (one of them, not both)" if shapes is not None else "")
        )
    if shapes is not None:
        return parse_shapes(shapes)
    make = load(str(maker), "--args")
    made: Any = None
    shaped = False
    if not real:
        try:
            made, shaped = jax.eval_shape(make), True
        except Exception:  # not of arrays alone, or it looks at values: then it is called, and says what is wrong
            pass
    if not shaped:
        with blaming(f"--args {maker}"):
            made = make()
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def target(fn: Any, args: tuple[Any, ...], donate: Sequence[int] | None, static: Sequence[int] = ()) -> Target:
    """The function with what its decorator said of it, where nothing else is said."""
    name = getattr(fn, "__name__", type(fn).__name__)
    bad = [i for i in (*(donate or ()), *static) if not 0 <= i < len(args)]
    if bad:
        raise SbpError(f"--donate/--static {bad}: {name} has {len(args)} arguments here, 0 to {len(args) - 1}")
    if isinstance(fn, ParallelFunction):
        call = fn._roles.call(args, {})
        return Target(
            fn._fn, args, name, call.donated if donate is None else tuple(donate), tuple(static) or call.static,
            fn._in_sbp, fn._out_sbp, fn._placement, fn._config,
        )  # fmt: skip
    if "flax" in sys.modules:  # without it there are no objects of it
        from ..flax.jit import ModuleFunction
        from ..flax.variables import is_object

        is_planned = isinstance(fn, ModuleFunction)
        if is_planned or any(map(is_object, jax.tree.leaves(args, is_leaf=is_object))):
            if donate:
                raise SbpError(f"--donate: {name} takes Flax objects, whose state is donated always")
            placement, config = (fn._placement, fn._config) if is_planned else (None, None)
            pins = fn._pins if is_planned else None
            return Target(
                fn._fn if is_planned else _plain(fn), args, name, (), tuple(static), pins, None, placement,
                config or _DEFAULT, True,
            )  # fmt: skip
    return Target(_plain(fn), args, name, tuple(donate or ()), tuple(static))


def parallel(found: Target, where: Placement | int | str | None, config: AutoParallelConfig) -> Any:
    """The function planned for ``where``: called as it is, and with ``.plan(*args)``."""
    if found.has_objects:
        from ..flax.jit import jit

        return jit(found.fn, placement=where, config=config, sbp=found.in_sbp, static_argnums=found.static)
    return auto_parallel(
        found.fn, placement=where, config=config, donate_argnums=found.donate, static_argnums=found.static,
        in_sbp=found.in_sbp, out_sbp=found.out_sbp,
    )  # fmt: skip


def _plain(fn: Any) -> Any:
    """What ``jax.jit`` or ``nnx.jit`` was given: the planner compiles by itself."""
    jitted = type(fn).__name__ in ("PjitFunction", "JitFn", "JitWrapped")
    return getattr(fn, "__wrapped__", fn) if jitted else fn
