"""Names of values: the user's own paths ("0/params/blocks/3/w_in"), how reports shorten them, how they are matched.

The one place for it. A path is what JAX calls a leaf's place in the arguments, its parts divided by "/"; the first part
says which argument. Whatever is printed is also understood: ``spellings`` are the names that one path goes by,
``matcher`` reads patterns with ``*``, ``**`` and ranges (``blocks/0..11``), ``fold`` writes them.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

# The last part of a path that names no array, but what flax.nnx keeps one in.
_HOLDERS = ("value", "raw_value")
# Parts that may be left out at the start of a path: linen's collection, and the model that an optimizer holds.
_CONTAINERS = ("params", "model")
# Numbers by which repeated parts differ: a part of its own, or at the end of a folder's name (``Dense_0/``). Not the
# first part, which says which argument; not in ``w1``, which is a name.
_NUMBER = re.compile(r"(?<=/)(?:0|[1-9]\d*)(?=/|$)|(?<=_)(?:0|[1-9]\d*)(?=/)")
_RANGES = re.compile(r"(.*_|.*[^\d,.](?=\d+\.\.\d))?(\d+(?:\.\.\d+)?(?:,\d+(?:\.\.\d+)?)*)")
_GAP = "\0"  # in no path
_MOST_IN_A_RANGE = 100_000


def plain(paths: Sequence[str]) -> list[str]:
    """The paths without a last part that only says what holds the array (``kernel/value`` of flax.nnx): ``kernel``.

    A part beside which there are others (``attention/key``, ``attention/value``) is a name, and stays.
    """
    beside: dict[str, int] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder:
            beside[folder] = beside.get(folder, 0) + 1
            folder = folder.rpartition("/")[0]
    found = []
    for path in paths:
        folder, _, last = path.rpartition("/")
        found.append(folder if last in _HOLDERS and "/" in folder and beside[folder] == 1 else path)
    return found


def named(path: str, names: Sequence[str]) -> str:
    """The path with its argument called by name: ``0/w`` -> ``params/w``, ``1`` -> ``x``.

    ``names`` are those of the arguments given by position; an empty one leaves the argument out
    (``model/head/kernel``). What begins with no number of an argument stays.
    """
    root, slash, rest = path.partition("/")
    if not (root.isdecimal() and int(root) < len(names)):
        return path
    name = names[int(root)]
    return f"{name}{slash}{rest}" if name else rest or path


def spellings(path: str, is_rooted: bool = True) -> tuple[str, ...]:
    """The path, and what it is called with parts left out: the argument (``is_rooted``), then ``params`` or ``model``.

    The shortest comes last. What would begin with a number keeps what stands before it.
    """
    found, parts = [path], path.split("/")
    if is_rooted:
        parts = parts[1:]
        found.append("/".join(parts))
    while parts and parts[0] in _CONTAINERS:
        parts = parts[1:]
        found.append("/".join(parts))
    return tuple(dict.fromkeys(p for p in found if p))


def without_root(key: str) -> str:
    """A key without a number in front that says which argument of a call it is in: ``0/params/w`` -> ``params/w``."""
    first, _, rest = key.partition("/")
    return rest if first.isdigit() and rest else key


def without_holder(key: str) -> str:
    """A key without a last part that only holds the array: ``head/kernel/value`` -> ``head/kernel``."""
    rest, _, last = key.rpartition("/")
    return rest if last in _HOLDERS and rest.replace("*", "").replace("/", "") else key


def folders(paths: Sequence[str], names: Sequence[str] = ()) -> list[str]:
    """The folders that parameters lie in, as names of layers.

    The argument and ``params`` or ``model`` below it are left out where all share them, so that a layer's name and a
    parameter's are a spelling of its path; not where a name would begin with a number then. A parameter that lies
    directly below what is left out is a layer of its own, as is each where all lie in one folder. An argument that
    stays is called by name (``names``, see ``named``).
    """
    parts = [p.split("/") for p in paths]
    least = min(map(len, parts), default=0)
    shared, least = 0, min(n_shared(parts), least - 1)
    while shared < least and (not shared or parts[0][shared] in _CONTAINERS):
        shared += 1
    is_flat = len({tuple(p[:-1]) for p in parts}) == 1
    start = shared
    while start and any(p[start].isdigit() for p in parts):
        start -= 1
    found = ["/".join(p[start:] if is_flat or len(p) == shared + 1 else p[start:-1]) for p in parts]
    return found if start else [named(name, names) for name in found]


def n_shared(paths: Sequence[Sequence[str]]) -> int:
    """How many parts in front are the same in all paths."""
    return sum(1 for _ in itertools.takewhile(lambda some: len(set(some)) == 1, zip(*paths, strict=False)))


def starred(name: str) -> str:
    """A name with every number starred that repeated parts may differ by: ``blocks/3/w`` -> ``blocks/*/w``."""
    return _NUMBER.sub("*", name)


def fold(names: Iterable[str]) -> dict[str, list[str]]:
    """Names that differ only in numbers as ranges, each with the names that it stands for, all and no others.

    ``blocks/0`` to ``blocks/11`` are ``blocks/0..11``; without 3 they are ``blocks/0..2,4..11``.
    """
    by_look: dict[str, dict[tuple[int, ...], str]] = {}
    for name in names:
        by_look.setdefault(_NUMBER.sub(_GAP, name), {})[tuple(int(n) for n in _NUMBER.findall(name))] = name
    found: dict[str, list[str]] = {}
    for look, rows in by_look.items():
        for box in _boxes(rows):
            between = itertools.zip_longest(look.split(_GAP), map(_range_text, box), fillvalue="")
            text = "".join(itertools.chain(*between))
            found[text] = [rows[row] for row in itertools.product(*box)]
    return found


def fold_layers(names: Iterable[str]) -> dict[str, list[str]]:
    """``fold`` for folders: a number at the end of the last part counts, too (``Dense_0..2``)."""
    folded = fold(f"{name}/" for name in names)
    return {text[:-1]: [m[:-1] for m in members] for text, members in folded.items()}


def _boxes(rows: Iterable[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
    """Tuples of numbers as few products of sets of numbers."""
    boxes = [tuple((n,) for n in row) for row in sorted(rows)]
    for axis in reversed(range(len(boxes[0]))):
        groups: dict[object, list[tuple[tuple[int, ...], ...]]] = {}
        for box in boxes:
            groups.setdefault((box[:axis], box[axis + 1 :]), []).append(box)
        boxes = [
            (*some[0][:axis], tuple(sorted(n for box in some for n in box[axis])), *some[0][axis + 1 :])
            for some in groups.values()
        ]
    return boxes


def _range_text(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def is_pattern(key: str) -> bool:
    """Whether a key may mean several names: it has stars, or ranges."""
    return any(c in key for c in "*?[") or ".." in key or "," in key


def matcher(key: str) -> Callable[[str], bool]:
    """Whether a path is meant by a key: ``*`` is any one part or a piece of one, ``**`` any number of parts, none
    included, ``0..11`` or ``0,2..5`` any of these numbers, also at the end of a name (``layer0..11``)."""
    expression = ""
    for part in key.split("/"):
        if part == "**":
            expression += "(?:[^/]+/)*"
            continue
        ranges = _RANGES.fullmatch(part)
        if ranges and not part.isdigit():
            expression += re.escape(ranges[1] or "") + _any_of(ranges[2]) + "/"
        else:
            expression += "[^/]*".join(map(re.escape, part.split("*"))) + "/"
    compiled = re.compile(expression)
    return lambda path: path == key or compiled.fullmatch(f"{path}/") is not None


def _any_of(text: str) -> str:
    numbers: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("..")
        end = min(int(last or first), int(first) + _MOST_IN_A_RANGE)
        numbers += range(int(first), end + 1)
    return f"(?:{'|'.join(map(str, numbers))})"
