"""A command's output stream that is closed before what wraps it is collected."""

import gc
import io

import pytest

from sbp_jax.cli import base


def test_collecting_the_wrapper_of_a_closed_stream_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on what goes wrong there is reported."""
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    inner = io.TextIOWrapper(io.BytesIO())
    pipe = base._Pipe(inner)  # pyright: ignore[reportPrivateUsage]
    pipe.write("seen")
    pipe.flush()
    assert inner.buffer.getvalue() == b"seen"  # pyright: ignore[reportAttributeAccessIssue]
    inner.close()
    del pipe
    gc.collect()
    assert not told
