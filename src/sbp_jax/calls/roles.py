"""Which arguments of a function are static and which donated, by number or by name, as ``jax.jit`` reads them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import PlanError

Nums = int | Sequence[int] | None
Names = str | Iterable[str] | None

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Marked:
    """Arguments marked as static, or as donated: ``numbers`` of positional ones, ``names`` of those given by name."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArgumentRoles:
    """What a function's arguments are. ``signature`` is None where Python does not know it (some builtins)."""

    name: str
    signature: inspect.Signature | None
    static: Marked
    donated: Marked

    @classmethod
    def of(
        cls, fn: Callable[..., Any], donate_argnums: Nums = (), donate_argnames: Names = (),
        static_argnums: Nums = (), static_argnames: Names = (),
    ) -> "ArgumentRoles":  # fmt: skip
        """Numbers from names and names from numbers, where one of the two is left out.

        Raises ``PlanError`` for arguments that the function does not have, and for one both static and donated.
        """
        name = getattr(fn, "__name__", type(fn).__name__)
        try:
            signature = inspect.signature(fn)
        except (ValueError, TypeError):
            signature = None
        static = _marked(name, signature, "static", static_argnums, static_argnames)
        donated = _marked(name, signature, "donate", donate_argnums, donate_argnames)
        both = sorted(map(str, {*static.numbers, *static.names} & {*donated.numbers, *donated.names}))
        if both:
            raise PlanError(f"{name}: arguments {', '.join(both)} are static and donated: a static one has no memory")
        return cls(name, signature, static, donated)

    @property
    def has_static(self) -> bool:
        """Whether any argument may be static."""
        return bool(self.static.numbers or self.static.names)

    def names(self, call: "Call") -> tuple[str, ...]:
        """The names of a call's traced arguments by position, ``rest/0`` for one of ``*rest``.

        Where Python knows no names (some builtins), their numbers.
        """
        parameters = {} if self.signature is None else self.signature.parameters
        known = [k for k, p in parameters.items() if p.kind in _BY_POSITION]
        others = next((k for k, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        taken = [i for i in range(len(call.args)) if i not in call.static]
        return tuple(
            known[i] if i < len(known) else str(k) if others is None else f"{others}/{i - len(known)}"
            for k, i in enumerate(taken)
        )

    def call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> "Call":
        """A call taken apart. What is marked and given by name counts as given by position, where it can be.

        Raises ``PlanError`` for a static argument that cannot be hashed.
        """
        if self.signature is not None and any(k in self.static.names or k in self.donated.names for k in kwargs):
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}() {error}") from None
            args, kwargs = bound.args, bound.kwargs
        static, n = _present(self.static, len(args)), len(args)
        fixed = {k: x for k, x in kwargs.items() if k in self.static.names}
        for which, x in (*((f"number {i}", args[i]) for i in static), *fixed.items()):
            try:
                hash(x)
            except TypeError:
                raise PlanError(
                    f"static argument {which} of {self.name} must be hashable, as for jax.jit; got {type(x).__name__}"
                ) from None
        return Call(
            tuple(args), {k: x for k, x in kwargs.items() if k not in fixed}, static, fixed,
            _present(self.donated, n), tuple(sorted(k for k in kwargs if k in self.donated.names)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A call: all arguments by position, the traced ones by name, and which are static and donated.

    ``static`` and ``donated`` are numbers of positional arguments, ``fixed`` the static ones given by name,
    ``donated_names`` the donated ones among ``kwargs``.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: tuple[int, ...]
    fixed: dict[str, Any]
    donated: tuple[int, ...]
    donated_names: tuple[str, ...]

    @property
    def dynamic(self) -> tuple[Any, ...]:
        """The traced arguments by position."""
        if not self.static:
            return self.args
        return tuple(x for i, x in enumerate(self.args) if i not in self.static)

    @property
    def donated_positions(self) -> tuple[int, ...]:
        """Which of ``dynamic`` are donated."""
        return tuple(i - sum(s < i for s in self.static) for i in self.donated)


def _present(marked: Marked, n: int) -> tuple[int, ...]:
    """The numbers among ``n`` positional arguments, negative ones from their end.

    The others have their defaults, or are given by name.
    """
    return tuple(sorted({i + n if i < 0 else i for i in marked.numbers if -n <= i < n}))


def _marked(name: str, signature: inspect.Signature | None, what: str, nums: Nums, names: Names) -> Marked:
    numbers = (nums,) if isinstance(nums, int) else tuple(nums or ())
    named = (names,) if isinstance(names, str) else tuple(names or ())
    if signature is None:
        return Marked(numbers, named)
    parameters = signature.parameters
    positional = [k for k, p in parameters.items() if p.kind in _BY_POSITION]
    kinds = {p.kind for p in parameters.values()}
    wrong: list[int | str] = []
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        wrong += [i for i in numbers if not -len(positional) <= i < len(positional)]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        wrong += [k for k in named if k not in parameters or parameters[k].kind is inspect.Parameter.POSITIONAL_ONLY]
    if wrong:
        raise PlanError(
            f"{what}_argnums/{what}_argnames {wrong}: {name} has the arguments {', '.join(parameters) or '(none)'}"
        )
    if numbers and not named:
        by_name = [k for k in positional if parameters[k].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        named = tuple(
            positional[i] for i in numbers if -len(positional) <= i < len(positional) and positional[i] in by_name
        )
    elif named and not numbers:
        numbers = tuple(positional.index(k) for k in named if k in positional)
    return Marked(numbers, named)
