"""The data file of one process: its pieces in chunks, each with a checksum, and the index that says where they are."""

import os
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import files
from .layout import Box, chunks, within
from .manifest import HEADER_BYTES, Chunk, file_entry, header, index_text

CHUNK_BYTES = 4 << 20
"""The largest part of a piece that has a checksum of its own, and is read at once."""

_WORKERS = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a leaf on the host."""

    leaf: int
    box: Box
    data: np.ndarray


def write(folder: Path, id: str, process: int, pieces: Sequence[Piece], chunk_bytes: int) -> dict[str, Any]:
    """Write one process's pieces, synced to the disk; what the manifest says of the files, by name.

    Raises ``OSError``; what was written by then is removed.
    """
    if not pieces:
        return {}
    data_name, index_name = f"data-{process:05d}-{id[:8]}.bin", f"index-{process:05d}-{id[:8]}.json"
    try:
        rows, size = _write_data(folder / data_name, header(id, process), pieces, chunk_bytes)
        text = index_text(id, process, data_name, rows)
        files.write_text(folder / index_name, text)
    except BaseException:
        for name in (data_name, index_name):
            (folder / name).unlink(missing_ok=True)
        raise
    return {data_name: {"bytes": size}, index_name: file_entry(text.encode())}


def _write_data(path: Path, head: bytes, pieces: Sequence[Piece], chunk_bytes: int) -> tuple[list[Chunk], int]:
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
        with ThreadPoolExecutor(_WORKERS, "sbp-checkpoint-write", initializer=_step_aside) as pool:
            sums = list(pool.map(lambda place: _write_chunk(handle, *place), places))
        os.fsync(handle)
    finally:
        os.close(handle)
    rows = [Chunk(c.leaf, c.box, c.file, c.offset, c.nbytes, s) for (_, c), s in zip(places, sums, strict=True)]
    return rows, end


def _write_chunk(handle: int, piece: Piece, chunk: Chunk) -> int:
    raw = as_bytes(np.ascontiguousarray(piece.data[within(chunk.box, piece.box)]))
    files.write_exactly(handle, memoryview(raw), chunk.offset)
    return zlib.crc32(raw)


def as_bytes(x: np.ndarray) -> np.ndarray:
    """A contiguous array's bytes, the same memory."""
    return x.reshape(-1).view(np.uint8)


def _step_aside() -> None:
    """Let the training step have the processor first, where the system has priorities for threads."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    except (AttributeError, OSError):
        pass
