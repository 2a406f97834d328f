"""One process of a test's world: connects, then runs the cases that it is sent, a line of JSON each.

Started by ``world.py``. Cases come on standard input; results leave on the file descriptor named in WORLD_RESULTS, so
that whatever a case prints stays apart. A connection that fails is a result too.
"""

import base64
import faulthandler
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import jax
import numpy as np

import sbp_jax as sbp

_modules: dict[str, Any] = {}


def packed(value: Any) -> Any:
    """A result as JSON: arrays with their dtype and their bytes, tuples as lists."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        raise TypeError("a case returns what this process holds: an array of several processes has no whole value here")
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        array = np.asarray(value)
        return {"dtype": str(array.dtype), "shape": array.shape, "bytes": base64.b64encode(array.tobytes()).decode()}
    if isinstance(value, dict):
        return {"items": [[key, packed(one)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        return [packed(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"a case cannot return a {type(value).__name__}: numbers, texts, arrays, and lists and dicts of them"
    )


def case(message: dict[str, Any]) -> Any:
    """The function of a message: one of a file by its name, or source text."""
    if "source" in message:
        body = "\n".join(f"    {line}" for line in message["source"].splitlines())
        names: dict[str, Any] = {"sbp": sbp, "jax": jax, "jnp": jax.numpy, "np": np, "os": os, "sys": sys}
        exec(compile(f"def case(*args):\n{body}\n", "<case>", "exec"), names)
        return names["case"]
    path = message["file"]
    if path not in _modules:
        sys.path.insert(0, str(Path(path).parent))
        spec = importlib.util.spec_from_file_location(f"cases_{len(_modules)}_{Path(path).stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _modules[path] = module
    found: Any = _modules[path]
    for part in message["function"].split("."):
        found = getattr(found, part)
    return inspect.unwrap(found)


def answer(function: Any, *args: Any) -> dict[str, Any]:
    try:
        return {"value": packed(function(*args))}
    except BaseException as error:  # What a case raises is its result, SystemExit too.
        traceback.print_exc()
        return {"error": str(error), "type": type(error).__name__, "traceback": traceback.format_exc()}


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    results = os.fdopen(int(os.environ["WORLD_RESULTS"]), "w")

    def send(message: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        results.write(json.dumps(message) + "\n")
        results.flush()

    settings = json.loads(os.environ.get("WORLD_INITIALIZE", "{}"))
    send(answer(lambda: sbp.distributed.initialize(**settings).rank))
    for line in sys.stdin:
        message = json.loads(line)
        send(answer(lambda message=message: case(message)(*message["args"])))


if __name__ == "__main__":
    main()
