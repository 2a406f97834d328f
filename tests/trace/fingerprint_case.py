"""Prints the fingerprints of some programs with parameters of every kind: the same in every process."""

import dataclasses
import functools
import json
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.trace import fingerprint

Pair = namedtuple("Pair", "first second")
KEY = jax.random.key(3)
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)

tagged_p = Primitive("tests.tagged")
tagged_p.def_abstract_eval(lambda x, **_: x)
tagged_p.def_impl(lambda x, **_: x)
mlir.register_lowering(tagged_p, lambda _, x, **__: [x])


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """Parameters must be hashable: what is not, in a box."""

    what: Any


class Tag:
    """A value that says itself what it equals."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tag) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)


def host(x: Any, add: float) -> Any:
    return np.asarray(x) + add


def called_back(x: Any, add: float = 1.0) -> Any:
    return jax.pure_callback(functools.partial(host, add=add), X, x)


def tagged(x: Any, **params: Any) -> Any:
    return tagged_p.bind(x, **params)


def scanned(x: Any, by: float = 2.0, reverse: bool = False) -> Any:
    def step(c: Any, row: Any) -> tuple[Any, Any]:
        return c + by * row, c.sum()

    return jax.lax.scan(step, x[0], x, reverse=reverse)


@sbp.register_rule("a b -> a b")
def users(x: Any) -> Any:
    return jnp.sort(x, axis=-1)


def of(fn: Any, *args: Any, donate: tuple[int, ...] = (), static: tuple[int, ...] = ()) -> str:
    program, _, _ = capture.trace(fn, args or (X,), {}, static, donate)
    return fingerprint(program)


def all_of_them() -> dict[str, str]:
    def looped(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < 10.0, lambda c: c + 1.0, x)

    return {
        "callback": of(called_back),
        "tagged": of(lambda x: tagged(x, tag=Tag("a", "b", "c", "d"), pair=Pair(1, frozenset("xyz")), kind=jnp.int8)),
        "function": of(lambda x: tagged(x, f=lambda y: y in {"p", "q", "r"}, g=host, h=functools.partial(host, add=2))),
        "array": of(
            lambda x: tagged(x, a=Held(np.arange(5)), b=Held({"k": KEY, "s": {"x", "y", "z"}}), dtype=jnp.bfloat16)
        ),
        "scan": of(scanned),
        "while": of(looped),
        "rule": of(users),
        "random": of(lambda x: jax.random.normal(jax.random.key(0), x.shape) + x),
        "gradient": of(jax.value_and_grad(lambda x: jnp.tanh(x[jnp.array([2, 1])]).sum())),
    }


if __name__ == "__main__":
    print(json.dumps(all_of_them()))
