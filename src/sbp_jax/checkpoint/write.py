"""The data file of one process: its pieces in chunks, each with a checksum, and the index that says where they are."""

import os
import queue
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import files
from .layout import Box, chunks, within
from .manifest import HEADER_BYTES, Chunk, file_entry, header, index_text

CHUNK_BYTES = 4 << 20
"""The largest part of a piece that has a checksum of its own, and is read at once."""

_NICE = 5
_WORKERS = max(1, min(4, os.cpu_count() or 1))


class Crew:
    """Threads that write. They are started at once: where the interpreter is ending, none can be, and a save that began
    before must still be finished. (``ThreadPoolExecutor`` takes no more work then.) Those that write while steps run
    (``is_behind``) let them go first."""

    def __init__(self, is_behind: bool = False, count: int = _WORKERS) -> None:
        self._is_behind = is_behind
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Daemons: the thread of the save waits for them, and is none. A crew without work ends with the program.
        self._threads = [
            threading.Thread(target=self._work, name="sbp-checkpoint-write", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        if self._is_behind:
            step_aside()
        while (job := self._jobs.get()) is not None:
            job()

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """``fn`` of every item, in the items' order. Raises what a call raised; no more are begun then."""
        results: list[Any] = [None] * len(items)
        failures: list[BaseException] = []
        numbers, lock, ended = iter(range(len(items))), threading.Lock(), threading.Semaphore(0)

        def job() -> None:
            try:
                while not failures:
                    with lock:
                        k = next(numbers, None)
                    if k is None:
                        break
                    results[k] = fn(items[k])
            except BaseException as error:
                failures.append(error)
            finally:
                ended.release()

        for _ in self._threads:
            self._jobs.put(job)
        for _ in self._threads:
            ended.acquire()
        if failures:
            raise failures[0]
        return results

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._jobs.put(None)


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a leaf on the host."""

    leaf: int
    box: Box
    data: np.ndarray


def write(
    folder: Path, id: str, process: int, pieces: Sequence[Piece], chunk_bytes: int, crew: Crew
) -> dict[str, Any]:  # fmt: skip
    """Write one process's pieces, synced to the disk; what the manifest says of the files, by name.

    Raises ``OSError``; what was written by then is removed.
    """
    if not pieces:
        return {}
    data_name, index_name = f"data-{process:05d}-{id[:8]}.bin", f"index-{process:05d}-{id[:8]}.json"
    try:
        rows, size = _write_data(folder / data_name, header(id, process), pieces, chunk_bytes, crew)
        text = index_text(id, process, data_name, rows)
        files.write_text(folder / index_name, text)
    except BaseException:
        for name in (data_name, index_name):
            (folder / name).unlink(missing_ok=True)
        raise
    return {data_name: {"bytes": size}, index_name: file_entry(text.encode())}


def _write_data(
    path: Path, head: bytes, pieces: Sequence[Piece], chunk_bytes: int, crew: Crew
) -> tuple[list[Chunk], int]:  # fmt: skip
    places: list[tuple[Piece, Chunk]] = []
    end = HEADER_BYTES
    for piece in pieces:
        for box in chunks(piece.box, piece.data.dtype.itemsize, chunk_bytes):
            size = piece.data[within(box, piece.box)].size * piece.data.dtype.itemsize
            places.append((piece, Chunk(piece.leaf, box, path.name, end, size, 0)))
            end += size
    handle = files.create(path)
    try:
        files.reserve(handle, end)
        files.write_exactly(handle, memoryview(head), 0)
        sums = crew.map(lambda place: _write_chunk(handle, *place), places)
        os.fsync(handle)
    finally:
        os.close(handle)
    rows = [Chunk(c.leaf, c.box, c.file, c.offset, c.nbytes, s) for (_, c), s in zip(places, sums, strict=True)]
    return rows, end


def _write_chunk(handle: int, piece: Piece, chunk: Chunk) -> int:
    raw = as_bytes(np.ascontiguousarray(piece.data[within(chunk.box, piece.box)]))
    files.write_exactly(handle, raw, chunk.offset)
    return zlib.crc32(raw)


def as_bytes(x: np.ndarray) -> memoryview:
    """A contiguous array's bytes, the same memory."""
    return x.reshape(-1).view(np.uint8).data


def step_aside() -> None:
    """For threads of ours: the training step comes first, where the system has priorities for threads."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except (AttributeError, OSError):
        pass
