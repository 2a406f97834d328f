"""Search methods by name: what each decides, what it promises, where it was published, and its options."""

import difflib
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import PlanError

Run = TypeVar("Run", bound=Callable[..., Any])

# What a family decides, and where the name of one of its methods is said.
FAMILIES = {
    "signatures": ("the signature of every value", "AutoParallelConfig(solver={name!r})"),
    "placing": ("the device of every op, on unlike devices", "sbp.place_ops(fn, ..., solver={name!r})"),
    "stages": ("a pipeline's stages and their devices", "sbp.Pipeline(stages='auto', search={name!r})"),
    "rewriting": ("the graph itself, before it is planned", "AutoParallelConfig(rewrite={name!r})"),
}
PROMISES = ("exact", "bound", "none")


@dataclass(frozen=True, slots=True)
class Option:
    """A number, switch or word that a method takes.

    Attributes:
        default: its value where none is given; a value has its type (an int is taken for a float).
        words: what it says.
        least, most: of numbers, the smallest and largest possible.
        possible: of words, all there are.
        read: of anything else, makes of what is given the text that is kept and compared by; its own text stays.
    """

    name: str
    default: bool | int | float | str
    words: str
    least: float = 0
    most: float = math.inf
    possible: tuple[str, ...] = ()
    read: Callable[[Any], str] | None = None

    def checked(self, method: str, value: Any) -> Any:
        """The value, if it is one of this option; ``PlanError`` says what is possible."""
        if self.read is not None:
            return self.read(value)
        words = f"{self.name}={value!r} of solver {method!r}: {self.words}"
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise PlanError(f"{words}; give True or False")
        elif isinstance(self.default, str):
            if value not in self.possible:
                raise PlanError(f"{words}; possible: {', '.join(map(repr, self.possible))}")
        else:
            kinds = int if isinstance(self.default, int) else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not self.least <= value <= self.most:
                kind = "a whole number" if kinds is int else "a number"
                most = "" if self.most == math.inf else f" and at most {self.most:g}"
                raise PlanError(f"{words}; give {kind} of at least {self.least:g}{most}")
        return value


@dataclass(frozen=True, slots=True)
class Method(Generic[Run]):
    """A search method.

    Attributes:
        family: what kind of thing it decides, one of ``FAMILIES``.
        decides: what it decides itself.
        promises: "exact" (the best plan, proven), "bound" (how far from the best it may be) or "none".
        paper: where it was published, with the section that is followed; empty for the library's own.
        options: what ``AutoParallelConfig(solver_options={...})``, or that family's own argument, may say to it.
        leaves_open: whether it decides a part only, and the rest is searched for exactly.
    """

    name: str
    family: str
    run: Run
    decides: str
    promises: str
    paper: str
    options: tuple[Option, ...]
    leaves_open: bool

    def checked(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The values of all options, by name. ``PlanError`` for one that there is not, or a value that cannot be."""
        known = {o.name: o for o in self.options}
        for name in given or {}:
            if name not in known:
                possible = ", ".join(map(repr, known)) or "none"
                raise PlanError(f"solver {self.name!r} has no option {name!r}; its options: {possible}")
        values = {o.name: o.default for o in self.options}
        return values | {name: known[name].checked(self.name, value) for name, value in (given or {}).items()}

    def __str__(self) -> str:
        rest = "; the rest is searched for exactly" if self.leaves_open else ""
        lines = [f"{self.name}: {self.decides}{rest}. Promises: {self.promises}"]
        if self.paper:
            lines.append(self.paper)
        lines += [f"{o.name}={o.default!r}: {o.words}" for o in self.options]
        return "\n".join(textwrap.fill(x, 110, subsequent_indent="    ") for x in lines)


class Methods(Mapping[str, Method[Any]]):
    """Search methods by name, in the order of their families. ``print`` shows a list with papers and options."""

    def __init__(self, found: Mapping[str, Method[Any]]) -> None:
        order = list(FAMILIES)
        self._found = dict(sorted(found.items(), key=lambda x: (order.index(x[1].family), x[0])))

    def __getitem__(self, name: str) -> Method[Any]:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def of(self, family: str) -> "Methods":
        """Those of one family. ``PlanError`` lists the families."""
        if family not in FAMILIES:
            raise PlanError(f"family {family!r} is not known; possible: {', '.join(map(repr, FAMILIES))}")
        return Methods({k: m for k, m in self._found.items() if m.family == family})

    @property
    def families(self) -> dict[str, "Methods"]:
        """By family its methods."""
        return {family: self.of(family) for family in FAMILIES if any(m.family == family for m in self.values())}

    def __repr__(self) -> str:
        return f"Methods({', '.join(self._found)})"

    def __str__(self) -> str:
        parts: list[str] = []
        for family, methods in self.families.items():
            what, how = FAMILIES[family]
            parts.append(f"{family}: {what}; {how.format(name='...')}")
            parts += [textwrap.indent(str(m), "  ") for m in methods.values()]
        return "\n".join(parts)


_METHODS: dict[str, Method[Any]] = {}


def register(
    name: str, *, family: str = "signatures", decides: str = "all", promises: str = "none", paper: str = "",
    options: tuple[Option, ...] = (), leaves_open: bool = False,
) -> Callable[[Run], Run]:  # fmt: skip
    """Register a search method under a name; the attributes are those of ``Method``."""
    if family not in FAMILIES or promises not in PROMISES:
        raise PlanError(f"families are {', '.join(FAMILIES)}, promises {', '.join(PROMISES)}; got {family}, {promises}")

    def add(run: Run) -> Run:
        if name in _METHODS:
            raise PlanError(f"there is a solver {name!r} already")
        what = FAMILIES[family][0] if decides == "all" else decides
        _METHODS[name] = Method(name, family, run, what, promises, paper, options, leaves_open)
        return run

    return add


def solvers() -> Methods:
    """All search methods by name: family, what each decides and promises, its paper and options."""
    return Methods(_METHODS)


def lookup(name: Any, family: str = "signatures") -> Method[Any]:
    """The method of a name; ``PlanError`` lists those of the family, and says where one of another family is named."""
    found = _METHODS.get(name) if isinstance(name, str) else None
    if found is None:
        possible = list(solvers().of(family))
        near = difflib.get_close_matches(str(name), possible, n=1)
        raise PlanError(
            f"solver {name!r} is not known{f'; did you mean {near[0]!r}?' if near else '.'} "
            f"Possible: {', '.join(map(repr, possible))}"
        )
    if found.family != family:
        what, how = FAMILIES[found.family]
        raise PlanError(
            f"solver {name!r} decides {what}, not {FAMILIES[family][0]}: name it in {how.format(name=name)}. "
            f"Possible here: {', '.join(map(repr, solvers().of(family)))}"
        )
    return found
