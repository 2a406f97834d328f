"""The notation of ``--shapes``: example arguments of a function, as shapes.

    f32[8,128]                     an array: dtype and dimensions; f32[] is a scalar
    {"w": bf16[4,4], b: f32[4]}    a dict; quotes around simple names may be left out
    [f32[4], f32[4]]  (f32[4],)    a list, a tuple
    f32[4,4]*12                    the same 12 times, among arguments or inside of a list or tuple
    key[]                          a random key (``jax.random.key``); key[8] eight of them
    0.1  3  True  None             a number, None

Several arguments are separated by commas. Dtypes are short (f32, bf16, s8, u8, pred, c64, f8e4m3fn) or numpy's
(float32, int8, bool).
"""

import difflib
import re
from typing import Any, NoReturn

from ..errors import SbpError

_SHORT = {
    "pred": "bool", "bool": "bool", "c64": "complex64", "c128": "complex128", "bf16": "bfloat16", "half": "float16",
    **{f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("s", "int"), ("i", "int"), ("u", "uint"))
       for bits in (4, 8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_DTYPES = _SHORT | {name: name for name in _SHORT.values()}
_WIDE = {"float64", "int64", "uint64", "complex128"}
_MOST_REPEATS = 100_000

_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*([eE][-+]?\d+)?|\.\d+)")


def parse_shapes(text: str) -> tuple[Any, ...]:
    """The arguments that ``text`` describes: trees of ``jax.ShapeDtypeStruct`` and numbers, one for each argument.

    Raises ``SbpError`` that shows the place in the text, and what could stand there.
    """
    reader = _Reader(text)
    arguments = reader.several("")
    return tuple(arguments)


class _Reader:
    """Reads from left to right; ``at`` is the place."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, says: str, at: int | None = None) -> NoReturn:
        place = self.at if at is None else at
        start = self.text.rfind("\n", 0, place) + 1
        line = self.text[start:].split("\n", 1)[0]
        raise SbpError(f"--shapes: {says}\n  {line}\n  {' ' * (place - start)}^")

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, c: str) -> bool:
        if self.peek() == c:
            self.at += 1
            return True
        return False

    def several(self, end: str) -> list[Any]:
        """Values with commas between, up to ``end``; a comma after the last is allowed."""
        found: list[Any] = []
        while self.peek() != end:
            value = self.value()
            found += [value] * self.repeats()
            if not self.take(",") and self.peek() != end:
                self.fail(f"expected ',' or {repr(end) if end else 'the end'}")
        self.at += len(end)
        if not end and not found:
            self.fail("there are no arguments; write one for each of the function's, as 'f32[8,128], s32[8]'")
        return found

    def repeats(self) -> int:
        if not self.take("*"):
            return 1
        self.peek()
        start = self.at
        digits = re.compile(r"\d+").match(self.text, start)
        if not digits or not 1 <= int(digits.group()) <= _MOST_REPEATS:
            self.fail(f"'*' is followed by how many times, 1 to {_MOST_REPEATS}", start)
        self.at = digits.end()
        return int(digits.group())

    def value(self) -> Any:
        c = self.peek()
        if c == "{":
            return self.dict()
        if self.take("["):
            return self.several("]")
        if self.take("("):
            return tuple(self.several(")"))
        if name := _NAME.match(self.text, self.at):
            return self.named(name.group())
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            text = number.group().replace("_", "")
            return float(text) if re.search(r"[.eE]", text) else int(text)
        self.fail("expected an array (f32[8,128]), a dict {name: ...}, a list [...], a tuple (...), a number or None")

    def dict(self) -> dict[str, Any]:
        self.take("{")
        found: dict[str, Any] = {}
        while self.peek() != "}":
            start = self.at
            key = self.key()
            if key in found:
                self.fail(f"the name {key!r} is there twice", start)
            if not self.take(":"):
                self.fail(f"expected ':' after the name {key!r}")
            found[key] = self.value()
            if self.peek() == "*":
                self.fail("'*' repeats a value in a list, a tuple or among the arguments; a name in a dict has one")
            if not self.take(",") and self.peek() != "}":
                self.fail("expected ',' or '}'")
        self.take("}")
        return found

    def key(self) -> str:
        quote = self.peek()
        if quote and quote in "\"'":
            end = self.text.find(quote, self.at + 1)
            if end < 0:
                self.fail(f"the name that begins here has no closing {quote}")
            name, self.at = self.text[self.at + 1 : end], end + 1
            return name
        match = re.compile(r"[\w.\-]+").match(self.text, self.at)
        if not match:
            self.fail("expected a name, with or without quotes")
        self.at = match.end()
        return match.group()

    def named(self, name: str) -> Any:
        """A dtype with its dimensions, or a word that is a value."""
        import jax  # not before it is needed: this module's notation is part of a help text
        import jax.numpy as jnp

        start = self.at
        self.at += len(name)
        if name in ("None", "True", "False"):
            return {"None": None, "True": True, "False": False}[name]
        if name != "key" and name not in _DTYPES:
            near = difflib.get_close_matches(name, [*_DTYPES, "key"], n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            short = ", ".join(["key", *_SHORT])
            self.fail(f"there is no dtype {name!r}; {hint}Known: {short}, and numpy's names", start)
        shape = self.shape(name)
        if name == "key":
            key = jax.eval_shape(lambda: jax.random.key(0))
            return jax.ShapeDtypeStruct(shape, key.dtype)
        if _DTYPES[name] in _WIDE and not jax.config.read("jax_enable_x64"):
            self.fail(
                f"{_DTYPES[name]} needs JAX_ENABLE_X64=1 in the environment; without it JAX computes in 32", start
            )
        return jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[name]))

    def shape(self, dtype: str) -> tuple[int, ...]:
        if not self.take("["):
            self.fail(f"expected the dimensions, {dtype}[8,128], or {dtype}[] for a scalar")
        dims: list[int] = []
        while not self.take("]"):
            self.peek()
            match = re.compile(r"\d[\d_]*").match(self.text, self.at)
            if not match:
                self.fail("expected a dimension: an integer of 0 or more")
            self.at = match.end()
            dims.append(int(match.group().replace("_", "")))
            if not self.take(",") and self.peek() != "]":
                self.fail("expected ',' or ']'")
        return tuple(dims)
