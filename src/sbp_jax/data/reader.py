"""The batches of a source from a state on: what ``Pipeline`` runs in its thread. Plain data in, a generator out."""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DataError
from .collate import Collator
from .order import order
from .shares import Shares
from .sources import Columns, Indexed, Stream, keeps_state, restore_iterator, saved_state, skip

_Batches = Generator[tuple[Any, "State"], None, None]


@dataclass(frozen=True, slots=True)
class State:
    """After ``step`` batches: ``position`` examples into ``epoch``. ``source``: a stream's own state."""

    epoch: int
    position: int
    step: int
    source: Any = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A source, and how batches are made of it."""

    source: Indexed | Stream
    shares: Shares
    batch: int
    seed: int | None
    is_shuffled: bool
    epochs: int | None
    drop_remainder: bool
    transform: Callable[..., Any] | None
    threads: int

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in an epoch; None for a stream."""
        if isinstance(self.source, Stream):
            return None
        return self.source.length // self.batch if self.drop_remainder else -(-self.source.length // self.batch)

    def identity(self) -> dict[str, Any]:
        """What decides which examples stand at a position: a state of other data does not fit."""
        length = None if isinstance(self.source, Stream) else self.source.length
        return {"examples": length, "seed": self.seed, "shuffled": self.is_shuffled}

    def batches(self, at: State) -> _Batches:
        """The batches after ``at``, each with the state after it."""
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(self.threads, "sbp.data")) if self.threads > 1 else None
            run: Callable[..., Any] = map if pool is None else pool.map
            loader = _Loader(self, run, Collator(), _takes_rng(self.transform))
            if isinstance(self.source, Stream):
                yield from self._streamed(self.source, loader, at)
            else:
                yield from self._indexed(self.source, loader, at)

    def _indexed(self, source: Indexed, loader: "_Loader", at: State) -> _Batches:
        step, position = at.step, at.position
        for epoch in self._epochs(at.epoch):
            while (size := min(self.batch, source.length - position)) == self.batch or (
                size > 0 and not self.drop_remainder
            ):
                rows = self.shares.rows(size)
                local = loader.numbered(source, epoch, self._numbers(source, epoch, position, rows))
                if local is None:  # none of this process's devices holds a row: one example says what they look like
                    first = self._numbers(source, epoch, position, np.zeros(1, np.int64))
                    loader.numbered(source, epoch, first)
                    local = loader.collator.nothing()
                position, step = position + size, step + 1
                yield self.shares.placed(local, rows, size), State(epoch, position, step)
            position = 0

    def _numbers(self, source: Indexed, epoch: int, position: int, rows: np.ndarray) -> np.ndarray:
        positions = position + rows
        return order(source.length, self.seed or 0, epoch, positions) if self.is_shuffled else positions

    def _streamed(self, source: Stream, loader: "_Loader", at: State) -> _Batches:
        step, position, kept = at.step, at.position, at.source
        for epoch in self._epochs(at.epoch):
            iterator = source.start()
            with contextlib.ExitStack() as stack:
                if source.is_repeatable and hasattr(iterator, "close"):
                    stack.callback(iterator.close)  # pyright: ignore[reportAttributeAccessIssue]
                _go_to(iterator, position, kept)
                while examples := list(itertools.islice(iterator, self.batch)):
                    size = len(examples)
                    if size < self.batch and self.drop_remainder:
                        break
                    rows = self.shares.rows(size)
                    # Without a row of its own a process looks at one example, to know what the others have.
                    wanted = rows if len(rows) else np.zeros(1, np.int64)
                    local = loader.given(epoch, position + wanted, [examples[k] for k in wanted])
                    if not len(rows):
                        local = loader.collator.nothing()
                    position, step = position + size, step + 1
                    kept = saved_state(iterator) if keeps_state(iterator) else None
                    yield self.shares.placed(local, rows, size), State(epoch, position, step, kept)
                if position == 0:
                    raise DataError(
                        f"the source gave no whole batch of {self.batch} in epoch {epoch}. Use a smaller batch, or "
                        "drop_remainder=False; an iterator that can be read once has to be made anew"
                    )
            position, kept = 0, None

    def _epochs(self, first: int) -> Iterator[int]:
        return iter(itertools.count(first) if self.epochs is None else range(first, self.epochs))


def _go_to(iterator: Iterator[Any], position: int, kept: Any) -> None:
    if kept is not None and keeps_state(iterator):
        restore_iterator(iterator, kept)
    else:
        skip(iterator, position)


@dataclass(frozen=True, slots=True)
class _Loader:
    """Examples into stacked trees, several at a time where ``run`` does that."""

    reader: Reader
    run: Callable[..., Any]
    collator: Collator
    has_rng: bool

    def numbered(self, source: Indexed, epoch: int, numbers: np.ndarray) -> Any:
        """The stacked examples of these numbers; None where there are none."""
        if not len(numbers):
            return None
        if isinstance(source, Columns) and self.reader.transform is None:
            return self.collator.adopt(source.take(numbers))

        def load(number: int) -> Any:
            with _noted(number, epoch):
                return self._transformed(source.example(number, epoch), epoch, number)

        told = numbers.tolist()
        return self.collator.stack(list(self.run(load, told)), told)

    def given(self, epoch: int, numbers: np.ndarray, examples: Sequence[Any]) -> Any:
        """Examples that were read already, transformed and stacked."""

        def load(number: int, example: Any) -> Any:
            with _noted(number, epoch):
                return self._transformed(example, epoch, number)

        told = numbers.tolist()
        return self.collator.stack(list(self.run(load, told, examples)), told)

    def _transformed(self, example: Any, epoch: int, number: int) -> Any:
        fn = self.reader.transform
        if fn is None:
            return example
        if not self.has_rng:
            return fn(example)
        return fn(example, np.random.default_rng([self.reader.seed or 0, epoch, number]))


@contextlib.contextmanager
def _noted(number: int, epoch: int) -> Iterator[None]:
    """What is raised inside says which example it was."""
    try:
        yield
    except StopIteration as error:
        raise DataError(f"loading example {number} of epoch {epoch} raised StopIteration") from error
    except Exception as error:
        error.add_note(f"sbp.data: loading example {number} of epoch {epoch}")
        raise


def _takes_rng(transform: Callable[..., Any] | None) -> bool:
    if transform is None:
        return False
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # built-in functions
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) >= 2
