"""``sbp.data.pipeline``: an iterator over global batches that can say where it stands and go there again."""

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from ..shardings import PlacementLike, placement_for
from .prefetch import Prefetcher
from .reader import Reader, State
from .shares import Shares
from .sources import Stream, read_source

_VERSION = 1


def pipeline(
    source: Any, *, placement: PlacementLike | None = None, sbp: Any, batch: int, seed: int | None = None,
    shuffle: bool | None = None, epochs: int | None = 1, drop_remainder: bool = True,
    transform: Callable[..., Any] | None = None, prefetch: int = 2, threads: int = 1,
) -> "Pipeline":  # fmt: skip
    """Global batches of ``batch`` examples, as ``jax.Array``s in the signature ``sbp`` on ``placement``.

    Each process loads the examples that its own devices hold, and no others. Step ``k`` gives the same global batch on
    every mesh and with every number of processes. The arrays lie where ``auto_parallel`` and ``sbp.flax.jit`` want
    them, if the signature is the one of the plan.

    ``source``: arrays (a dict or a tuple of them, cut into examples along dimension 0); anything with ``len()`` and
    integer indices (a list, a Grain ``MapDataset``, a torch dataset); an iterable (a Grain ``IterDataset`` or
    ``DataLoader``, a generator); or a function without parameters that gives one of these. An iterable is a stream:
    **every process reads all of it**, and keeps its share. Only reading is repeated; ``transform`` runs on the share.

    ``sbp``: one signature for all leaves of a batch, or a tree of them that is a prefix of the batch's (a plan's
    ``signatures()`` of that argument will do). Dimension 0 is the batch.

    ``seed``: shuffles a source that has indices, anew in each epoch. None: in order. ``shuffle=False`` leaves the
    order as it is, and the seed to ``transform``. A stream keeps its own order; ``shuffle=True`` is an error there.

    ``epochs``: how often the source is read; None: without end. ``drop_remainder``: leave out what an epoch has over
    after the last whole batch. If kept, that batch is whole along the axes that do not divide it.

    ``transform``: run on each example on its way into the batch, as ``transform(example)``; with a second parameter as
    ``transform(example, rng)``, where ``rng`` is a ``numpy.random.Generator`` seeded by the seed, the epoch and the
    example's number. ``prefetch``: how many batches are made ahead, on the devices, in a thread; 0: none, no thread.
    ``threads``: how many examples are loaded at once; more than one needs a source that several threads may read.

    Raises ``DataError`` for a source, an example or options that cannot be used, and ``SignatureError`` where the batch
    does not divide as ``sbp`` says. What the source or ``transform`` raises is raised from ``next``.
    """
    where = placement_for(placement, sbp, "sbp.data.pipeline")
    shares = Shares(where, sbp)
    _ = where.mesh  # its devices must exist
    size = _count("batch", batch, 1)
    shares.check(size)
    if transform is not None and not callable(transform):
        raise DataError(f"transform is a function of one example, got a {type(transform).__name__}")
    read = read_source(source)
    if shuffle and isinstance(read, Stream):
        raise DataError(
            "shuffle=True: a stream has no indices to shuffle by. Shuffle where the stream is made (Grain: "
            ".shuffle(seed=...) before .to_iter_dataset()), or give a source with len() and integer indices"
        )
    if shuffle and seed is None:
        raise DataError("shuffle=True needs a seed, the same in every process: seed=0")
    if isinstance(read, Stream) and not read.is_repeatable and epochs != 1:
        raise DataError(
            f"epochs={epochs}, but the source is a {type(source).__name__}, which can be read once: give a function "
            "that makes it (source=lambda: ...)"
        )
    if not isinstance(read, Stream) and read.length < (size if drop_remainder else 1):
        raise DataError(
            f"the source has {read.length} example(s), batch={size}: there is no whole batch in an epoch. Use a "
            "smaller batch" + (", or drop_remainder=False" if read.length and drop_remainder else "")
        )
    reader = Reader(
        read, shares, size, None if seed is None else _count("seed", seed, 0),
        seed is not None and shuffle is not False and not isinstance(read, Stream),
        None if epochs is None else _count("epochs", epochs, 1), bool(drop_remainder), transform,
        _count("threads", threads, 1),
    )  # fmt: skip
    return Pipeline(reader, _count("prefetch", prefetch, 0))


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} must be a whole number, {least} or more; got {value!r}")
    return int(value)


class Pipeline:
    """An iterator over global batches, made by ``sbp.data.pipeline``.

    ``next`` may be called from any thread. ``close``, or the end of a ``with`` block, ends the thread that loads ahead;
    so does collecting the object.
    """

    def __init__(self, reader: Reader, prefetch: int) -> None:
        self._reader, self._prefetch = reader, prefetch
        self._at = State(0, 0, 0, reader.source.first_state if isinstance(reader.source, Stream) else None)
        self._running: Prefetcher | None = None
        self._finalizer: weakref.finalize | None = None
        self._lock = threading.RLock()

    def __iter__(self) -> "Pipeline":
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._running is None:
                self._running = Prefetcher(self._reader.batches(self._at), self._prefetch)
                self._finalizer = weakref.finalize(self, self._running.stop)
            batch, self._at = self._running.get()
            return batch

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        r = self._reader
        return f"<sbp.data.pipeline of batches of {r.batch} on {r.shares.placement}, after step {self._at.step}>"

    @property
    def step(self) -> int:
        """How many batches were given, those before a restored state included."""
        return self._at.step

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in an epoch; None for a stream."""
        return self._reader.steps_per_epoch

    def state(self) -> dict[str, Any]:
        """Where the iterator stands, after the last batch that it gave: a small dict that JSON can hold.

        The same in every process, and for every mesh. Batches made ahead do not count.
        """
        with self._lock:
            at = self._at
            state = {"version": _VERSION, "epoch": at.epoch, "position": at.position, "step": at.step}
            state["data"] = self._reader.identity()
            if at.source is not None:
                state["source"] = at.source
            return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch that ``state`` was taken after. The mesh, the number of processes and ``batch`` may be
        others. A stream without a state of its own is read again up to there.

        Raises ``DataError`` for what is no state, and for one of other data: another seed, order, or number of
        examples.
        """
        at = self._read_state(state)
        with self._lock:
            self.close()
            self._at = at

    def close(self) -> None:
        """End the thread that loads ahead. ``next`` starts it again where the iterator stands."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._running = self._finalizer = None

    def _read_state(self, state: Any) -> State:
        numbers = ("version", "epoch", "position", "step")
        good = isinstance(state, Mapping) and all(
            isinstance(state.get(k), int) and not isinstance(state.get(k), bool) and state[k] >= 0 for k in numbers
        )
        if not good:
            raise DataError(f"restore takes what .state() gave, a dict with {', '.join(numbers)}; got {state!r:.200}")
        if state["version"] > _VERSION:
            raise DataError(
                f"the state is of version {state['version']}, this sbp_jax reads up to {_VERSION}: use a newer one"
            )
        mine, given = self._reader.identity(), state.get("data")
        other = given if isinstance(given, Mapping) else {}
        differing = [f"{k}: {other.get(k)!r} there, {mine[k]!r} here" for k in mine if mine[k] != other.get(k)]
        if differing:
            raise DataError(f"the state is of other data ({'; '.join(differing)}): make the pipeline with the same")
        source = state.get("source")
        if isinstance(self._reader.source, Stream) and source is not None and not isinstance(source, Mapping):
            raise DataError(f"the state's source must be a dict, got {source!r:.200}")
        return State(state["epoch"], state["position"], state["step"], source)
