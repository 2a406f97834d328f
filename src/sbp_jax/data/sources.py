"""What examples come from: sources read by number, and streams, read from the beginning."""

import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from ..errors import DataError

_POSSIBLE = (
    "possible: arrays (a dict or a tuple of them, split into examples along dimension 0), anything with len() and "
    "integer indices (a list, a Grain MapDataset, a torch dataset), an iterable (a Grain IterDataset or DataLoader, a "
    "generator), or a function without parameters that gives one of these"
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays in a tree, all of one length: example ``i`` is row ``i`` of each."""

    arrays: Any
    length: int

    def example(self, index: int, epoch: int) -> Any:
        """One example."""
        return jax.tree.map(lambda x: x[index], self.arrays)

    def take(self, indices: np.ndarray) -> Any:
        """Many examples at once, stacked."""
        return jax.tree.map(lambda x: x[indices], self.arrays)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A source with ``len()`` and integer indices."""

    items: Any
    length: int
    is_grain: bool = False

    def example(self, index: int, epoch: int) -> Any:
        """One example. Grain's own datasets number the examples of later epochs on, and shuffle each anew."""
        return self.items[index + epoch * self.length if self.is_grain else index]


Indexed: TypeAlias = Columns | Numbered


@dataclass(frozen=True, slots=True)
class Stream:
    """A source that can only be read in order. ``start`` gives an iterator over an epoch."""

    start: Callable[[], Iterator[Any]]
    is_repeatable: bool
    first_state: Any = None
    """Where an iterator that was handed over stood then, if it can say so."""


Source: TypeAlias = Indexed | Stream


def read_source(given: Any) -> Source:
    """What ``given`` is as a source. Raises ``DataError`` for what is none."""
    if isinstance(given, str | bytes | set | frozenset) or given is None:
        why = "its order differs between processes" if isinstance(given, set | frozenset) else "it holds no examples"
        raise DataError(f"source is a {type(given).__name__}: {why}; {_POSSIBLE}")
    if _is_array(given) or (isinstance(given, Mapping) or _is_tuple_of_arrays(given)):
        return _columns(given)
    if _is_grain(given, "MapDataset"):
        return _numbered(given, True)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__") and not _is_grain(given, "IterDataset"):
        if hasattr(given, "iloc"):
            raise DataError(
                "source is a table whose indices are columns: give its columns as arrays, "
                "{name: column.to_numpy() for name, column in table.items()}"
            )
        return _numbered(given, False)
    if isinstance(given, Iterator):
        return _once(given)
    if isinstance(given, Iterable):
        return Stream(lambda: iter(given), True)
    if callable(given):
        return _called(given)
    raise DataError(f"source is a {type(given).__name__}; {_POSSIBLE}")


def _once(given: Iterator[Any]) -> Stream:
    if keeps_state(given):
        return Stream(lambda: given, False, saved_state(given))
    unread = [given]

    def start() -> Iterator[Any]:
        if not unread:
            raise DataError(
                f"source is a {type(given).__name__}, which can be read once and has been read: to begin again, or to "
                "go back to a state, give a function that makes it (source=lambda: ...)"
            )
        return unread.pop()

    return Stream(start, False)


def _called(given: Callable[[], Any]) -> Source:
    try:
        made = given()
    except TypeError as error:
        raise DataError(f"source is a function, called without arguments: {error}; {_POSSIBLE}") from error
    if callable(made) and not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
        raise DataError(f"source is a function that gives another function ({made!r}); {_POSSIBLE}")
    source = read_source(made)
    if not isinstance(source, Stream):
        return source
    first = [source.start()]
    # The first epoch reads what was made to look at; each later one calls again.
    return Stream(lambda: first.pop() if first else iter(given()), True)


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | jax.Array)


def _is_tuple_of_arrays(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) > 0 and all(map(_is_array, jax.tree.leaves(x)))


def _columns(given: Any) -> Columns:
    def column(path: Any, x: Any) -> np.ndarray:
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            raise DataError(
                f"source{_name(path)} is an array of several processes: each must be able to read all of it"
            )
        if not hasattr(x, "__array__"):
            raise DataError(f"source{_name(path)} is a {type(x).__name__}: a tree as source holds arrays; {_POSSIBLE}")
        array = np.asarray(x)
        if array.ndim == 0:
            raise DataError(f"source{_name(path)} is one number: arrays are split into examples along dimension 0")
        return array

    arrays = jax.tree_util.tree_map_with_path(column, given, is_leaf=lambda x: isinstance(x, list))
    lengths = {_name(path): len(x) for path, x in jax.tree_util.tree_flatten_with_path(arrays)[0]}
    if not lengths:
        raise DataError(f"source is an empty {type(given).__name__}; {_POSSIBLE}")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"source{name} has {n}" for name, n in lengths.items())
        raise DataError(f"the arrays of the source must have one length along dimension 0: {told}")
    return Columns(arrays, next(iter(lengths.values())))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)


def _numbered(given: Any, is_grain: bool) -> Numbered:
    length = len(given)
    if is_grain and length >= sys.maxsize:
        raise DataError("source is a Grain dataset repeated without end: leave .repeat() out, and pass epochs=None")
    return Numbered(given, length, is_grain)


def _is_grain(x: Any, name: str) -> bool:
    """Whether ``x`` is of a class of Grain's, which is not imported for that: whoever made ``x`` has done so."""
    kind = getattr(sys.modules.get("grain"), name, None)
    return kind is not None and isinstance(x, kind)


def keeps_state(iterator: Any) -> bool:
    """Whether an iterator can say where it stands, and go there (Grain's can)."""
    return hasattr(iterator, "get_state") and hasattr(iterator, "set_state")


def saved_state(iterator: Any) -> Any:
    """An iterator's own state, as JSON can hold it."""
    state = iterator.get_state()
    if isinstance(state, bytes):
        try:
            return {"text": state.decode("utf-8")}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(state).decode("ascii")}
    try:
        return {"json": json.loads(json.dumps(state))}
    except (TypeError, ValueError) as error:
        raise DataError(
            f"get_state() of the source's iterator gives a {type(state).__name__} that JSON cannot hold ({error}); "
            "it must be bytes, or made of dicts, lists, text and numbers"
        ) from error


def restore_iterator(iterator: Any, state: Mapping[str, Any]) -> None:
    """The inverse of ``saved_state``."""
    if "text" in state:
        iterator.set_state(state["text"].encode("utf-8"))
    elif "base64" in state:
        iterator.set_state(base64.b64decode(state["base64"], validate=True))
    else:
        iterator.set_state(state["json"])


def skip(iterator: Iterator[Any], count: int) -> None:
    """Read ``count`` examples and forget them. Raises ``DataError`` where there are fewer."""
    read = sum(1 for _ in itertools.islice(iterator, count))
    if read < count:
        raise DataError(f"the state was taken after {count} examples of an epoch, the source has only {read} now")
