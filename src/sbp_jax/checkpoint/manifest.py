"""What a checkpoint says of itself: its leaves, its files with sizes and checksums. Written last; JSON, checked whole.

A folder without a manifest is no checkpoint. The manifest holds its own checksum and those of the small files; an index
file holds a checksum for each chunk of the data file beside it. So every byte of a checkpoint is covered, and the id
that all its files carry tells those of another checkpoint from its own.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from ..errors import CheckpointDamaged, CheckpointError
from ..placement import Placement
from ..signature import Signature
from .files import MANIFEST, compact, is_listed_name, opened, read_small
from .layout import Box, volume
from .leaves import Leaf, dtype_of, from_json

FORMAT = "sbp_jax checkpoint"
VERSION = 1
HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive bytes of a data file: one box of one leaf, in C order."""

    leaf: int
    box: Box
    file: str
    offset: int
    nbytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint without its data. ``files``: bytes, and SHA-256 of those that no index covers."""

    id: str
    step: int | None
    created: str
    leaves: tuple[Leaf, ...]
    files: Mapping[str, Mapping[str, Any]]
    data: Any = None
    plan_fingerprint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def with_suffix(self, start: str) -> list[str]:
        """The listed files whose names begin so, in order."""
        return sorted(name for name in self.files if name.startswith(start))


def versions() -> dict[str, str]:
    """What wrote a checkpoint."""
    return {
        "sbp_jax": importlib.metadata.version("sbp_jax"),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def header(id: str, process: int) -> bytes:
    """The first bytes of a data file: of which checkpoint, of which process."""
    return f"{FORMAT} data {id} {process}\n".encode().ljust(HEADER_BYTES)


def to_text(manifest: Manifest) -> str:
    """The manifest as its file holds it."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "id": manifest.id,
        "step": manifest.step,
        "created": manifest.created,
        "leaves": [_leaf_json(x) for x in manifest.leaves],
        "files": {name: dict(x) for name, x in manifest.files.items()},
        "data": manifest.data,
        "plan_fingerprint": manifest.plan_fingerprint,
        "versions": dict(manifest.versions),
    }
    return compact({"manifest": body, "sha256": _sha256(compact(body).encode())})


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint's folder.

    Raises ``CheckpointDamaged`` where it is missing or not what was written, ``CheckpointError`` for one that a newer
    version of this library wrote.
    """
    raw = read_small(folder, MANIFEST)
    try:
        text = raw.decode("utf-8")
        both = json.loads(text)
        body = both["manifest"]
        whole = compact(both) == text and both["sha256"] == _sha256(compact(body).encode())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointDamaged(f"{MANIFEST} is no manifest ({type(error).__name__})") from error
    if not whole or len(both) != 2:
        raise CheckpointDamaged(f"{MANIFEST} is not what was written: its checksum differs")
    if body.get("format") != FORMAT or body.get("version") != VERSION:
        raise CheckpointError(
            f"{folder / MANIFEST} is of format {body.get('format')!r} version {body.get('version')!r}; this version of "
            f"sbp_jax reads {FORMAT!r} version {VERSION}: install the one that wrote it, {body.get('versions')}"
        )
    try:
        return _parsed(body)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(f"{MANIFEST} cannot be read ({type(error).__name__}: {error})") from error


def _parsed(body: Mapping[str, Any]) -> Manifest:
    files = body["files"]
    strange = [name for name in files if not is_listed_name(name)]
    if strange:
        raise ValueError(f"it lists {strange[0]!r}, which is no name of a checkpoint's file")
    for x in files.values():
        _natural(x["bytes"])
    id, step = body["id"], body["step"]
    if not isinstance(id, str) or not (step is None or type(step) is int):
        raise TypeError("its id or step is of another type")
    return Manifest(
        id,
        step,
        str(body["created"]),
        tuple(map(_leaf, body["leaves"])),
        files,
        body["data"],
        body["plan_fingerprint"],
        body["versions"],
    )


def index_text(id: str, process: int, name: str, chunks: Sequence[Chunk]) -> str:
    """An index file: the chunks of the data file ``name``."""
    rows = [[c.leaf, c.box, c.offset, c.nbytes, c.crc32] for c in chunks]
    return compact({"id": id, "process": process, "file": name, "chunks": rows})


def read_indexes(folder: Path, manifest: Manifest) -> list[Chunk]:
    """All chunks of a checkpoint; sizes and places are checked against the manifest. Raises ``CheckpointDamaged``."""
    found: list[Chunk] = []
    covered: set[str] = set()
    for name in manifest.with_suffix("index-"):
        raw = read_checked(folder, manifest, name)
        try:
            both = json.loads(raw)
            file, id = both["file"], both["id"]
            if id != manifest.id or file in covered or not file.startswith("data-"):
                raise ValueError("it belongs to another checkpoint")
            rows, size = both["chunks"], manifest.files[file]["bytes"]
            covered.add(file)
            end = HEADER_BYTES
            for leaf, box, offset, nbytes, crc in rows:
                chunk = Chunk(leaf, tuple((a, b) for a, b in box), file, offset, nbytes, crc)
                _check_chunk(chunk, manifest.leaves, end)
                found.append(chunk)
                end += nbytes
            if end != size:
                raise ValueError(f"it covers {end} of {size} bytes of {file}")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CheckpointDamaged(f"{name} cannot be read ({type(error).__name__}: {error})") from error
    bare = [name for name in manifest.with_suffix("data-") if name not in covered]
    if bare:
        raise CheckpointDamaged(f"{bare[0]} has no index")
    return found


def _check_chunk(chunk: Chunk, leaves: Sequence[Leaf], offset: int) -> None:
    leaf = leaves[_natural(chunk.leaf)]
    fits = len(chunk.box) == len(leaf.shape) and all(
        0 <= _natural(a) < _natural(b) <= n for (a, b), n in zip(chunk.box, leaf.shape, strict=True)
    )
    if not fits or chunk.offset != offset or chunk.nbytes != volume(chunk.box) * dtype_of(leaf.dtype).itemsize:
        raise ValueError(f"a chunk of {leaf.path!r} does not fit it")
    _natural(chunk.crc32)


def read_checked(folder: Path, manifest: Manifest, name: str) -> bytes:
    """A small file of which the manifest holds the checksum. Raises ``CheckpointDamaged``."""
    told = manifest.files[name]
    raw = read_small(folder, name, told["bytes"])
    if _sha256(raw) != told.get("sha256"):
        raise CheckpointDamaged(f"{name} is not what was written: its checksum differs")
    return raw


def check_data_file(folder: Path, manifest: Manifest, name: str) -> None:
    """That a data file is there, of this checkpoint, as long as it was. Raises ``CheckpointDamaged``."""
    import os

    told = manifest.files[name]["bytes"]
    with opened(folder, name) as handle:
        size = os.fstat(handle).st_size
        if size != told:
            raise CheckpointDamaged(f"{name} has {size} bytes, {told} were written")
        process = int(name.split("-")[1])
        if os.pread(handle, HEADER_BYTES, 0) != header(manifest.id, process):
            raise CheckpointDamaged(f"{name} belongs to another checkpoint, or its beginning is damaged")


def file_entry(raw: bytes) -> dict[str, Any]:
    """What the manifest says of a small file."""
    return {"bytes": len(raw), "sha256": _sha256(raw)}


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _natural(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise TypeError(f"{x!r} is no count")
    return x


def _leaf_json(leaf: Leaf) -> dict[str, Any]:
    found: dict[str, Any] = {"keys": [list(k) for k in leaf.keys], "kind": leaf.kind}
    if leaf.has_data:
        found |= {"dtype": leaf.dtype, "shape": list(leaf.shape), "ndim": leaf.ndim}
    found |= {k: v for k in ("weak", "scalar", "prng", "value") if (v := getattr(leaf, k))}
    if leaf.placement is not None and leaf.signature is not None:
        p = leaf.placement
        found["placement"] = {"type": p.type, "ranks": p.ranks.tolist(), "axis_names": list(p.axis_names)}
        found["sbp"] = str(leaf.signature)
    return found


def _leaf(x: Mapping[str, Any]) -> Leaf:
    kind, shape = x["kind"], tuple(map(_natural, x.get("shape", ())))
    if kind not in ("jax", "global", "numpy", "python", "empty"):
        raise ValueError(f"{kind!r} is no kind of leaf")
    keys = tuple((str(how), name if isinstance(name, int) else str(name)) for how, name in x["keys"])
    if kind == "python":
        from_json(x["value"])
    elif kind != "empty":
        dtype_of(x["dtype"])
    where = signature = None
    if "placement" in x:
        from ..placement import placement

        p = x["placement"]
        where, signature = placement(p["type"], p["ranks"], p["axis_names"]), Signature.parse(x["sbp"])
    return Leaf(
        keys,
        kind,
        x.get("dtype", ""),
        shape,
        _natural(x.get("ndim", 0)),
        bool(x.get("weak")),
        bool(x.get("scalar")),
        str(x.get("prng", "")),
        x.get("value"),
        where,
        signature,
    )


def describe_placement(where: Placement | None, signature: Signature | None) -> str:
    """Where a leaf was, in words."""
    return "on one device" if where is None else f"({signature}) on {where}"
