"""Boxes of leaves from the data files: only chunks that overlap them are read, each is checked before it is used."""

import os
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import CheckpointDamaged
from . import files
from .layout import Box, overlap, volume, within
from .leaves import dtype_of
from .manifest import Chunk, Manifest, check_data_file, read_checked, read_indexes
from .write import as_bytes

_WORKERS = max(1, min(4, os.cpu_count() or 1))
# Leaves are read ahead of those that are being placed on devices, up to this many bytes.
_AHEAD_BYTES = 256 << 20
_ALIGNMENT = 64

Buffers = Mapping[Box, np.ndarray]


@dataclass(slots=True)
class Reading:
    """What a process has read: bytes of data files."""

    bytes: int = 0
    chunks: int = 0


def read_boxes(
    folder: Path,
    manifest: Manifest,
    wanted: Sequence[tuple[int, Sequence[Box]]],
    use: Callable[[int, Buffers], None],
) -> Reading:
    """Read boxes of leaves, and give them to ``use`` leaf by leaf, in the order of ``wanted``.

    Raises ``CheckpointDamaged``, which names the file and the leaf.
    """
    by_leaf: dict[int, list[Chunk]] = {}
    for chunk in read_indexes(folder, manifest):
        by_leaf.setdefault(chunk.leaf, []).append(chunk)
    for name in manifest.with_suffix("data-"):
        check_data_file(folder, manifest, name)
    done = Reading()
    waiting: deque[tuple[int, Buffers, list[Future[None]]]] = deque()
    ahead = 0

    def finish() -> None:
        nonlocal ahead
        leaf, buffers, futures = waiting.popleft()
        for future in futures:
            future.result()
        ahead -= sum(x.nbytes for x in buffers.values())
        use(leaf, buffers)

    with ThreadPoolExecutor(_WORKERS, "sbp-checkpoint-read") as pool:
        try:
            for leaf, boxes in wanted:
                told = manifest.leaves[leaf]
                buffers = {box: _buffer(box, dtype_of(told.dtype)) for box in boxes}
                futures = []
                missing = {box: volume(box) for box in buffers}
                for chunk in by_leaf.get(leaf, ()):
                    shared = [(box, part) for box in buffers if (part := overlap(chunk.box, box)) is not None]
                    if not shared:
                        continue
                    for box, part in shared:
                        missing[box] -= volume(part)
                    futures.append(pool.submit(_read_chunk, folder, chunk, told.path, buffers, shared))
                    done.bytes += chunk.nbytes
                    done.chunks += 1
                if any(missing.values()):
                    raise CheckpointDamaged(f"the index files do not cover the leaf {told.path!r}")
                waiting.append((leaf, buffers, futures))
                ahead += sum(x.nbytes for x in buffers.values())
                while ahead > _AHEAD_BYTES and len(waiting) > 1:
                    finish()
            while waiting:
                finish()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return done


def _buffer(box: Box, dtype: np.dtype) -> np.ndarray:
    """Memory for a box, zeros, aligned so that a CPU device takes it as it is, without a copy."""
    size = volume(box) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape([stop - start for start, stop in box])


def _read_chunk(folder: Path, chunk: Chunk, path: str, buffers: Buffers, shared: Sequence[tuple[Box, Box]]) -> None:
    box, part = shared[0]
    straight = buffers[box][within(part, box)] if len(shared) == 1 and part == chunk.box else None
    if straight is not None and straight.flags.c_contiguous:
        read_chunk_bytes(folder, chunk, path, as_bytes(straight))
        return
    data = np.empty([stop - start for start, stop in chunk.box], buffers[box].dtype)
    read_chunk_bytes(folder, chunk, path, as_bytes(data))
    for box, part in shared:
        buffers[box][within(part, box)] = data[within(part, chunk.box)]


def read_chunk_bytes(folder: Path, chunk: Chunk, path: str, into: memoryview) -> None:
    """A chunk's bytes, checked. Raises ``CheckpointDamaged``."""
    with files.opened(folder, chunk.file) as handle:
        files.read_exactly(handle, into, chunk.offset, chunk.file)
    if zlib.crc32(into) != chunk.crc32:
        raise CheckpointDamaged(
            f"{chunk.file}: bytes {chunk.offset} to {chunk.offset + chunk.nbytes} (of the leaf {path!r}) are not what "
            "was written: their checksum differs"
        )


def faults(folder: Path, manifest: Manifest, process: int = 0, processes: int = 1) -> list[str]:
    """What is damaged in a checkpoint, at most one fault a file; empty if nothing is. Reads every byte.

    Where several processes do this together, each reads its share of the chunks.
    """
    found: dict[str, str] = {}

    def note(name: str, check: Callable[[], object]) -> None:
        try:
            check()
        except CheckpointDamaged as error:
            found.setdefault(name, str(error))

    for name in manifest.with_suffix("data-"):
        note(name, lambda name=name: check_data_file(folder, manifest, name))
    for name in manifest.with_suffix("plan-"):
        note(name, lambda name=name: read_checked(folder, manifest, name))
    chunks: list[Chunk] = []
    note("index", lambda: chunks.extend(read_indexes(folder, manifest)))
    todo = [c for c in chunks[process::processes] if c.file not in found]

    def check(part: Sequence[Chunk]) -> None:
        room = memoryview(bytearray(max((c.nbytes for c in part), default=0)))
        for chunk in part:
            into = room[: chunk.nbytes]
            note(chunk.file, lambda c=chunk, b=into: read_chunk_bytes(folder, c, manifest.leaves[c.leaf].path, b))

    with ThreadPoolExecutor(_WORKERS, "sbp-checkpoint-verify") as pool:
        list(pool.map(check, [todo[k::_WORKERS] for k in range(_WORKERS)]))
    return list(found.values())
