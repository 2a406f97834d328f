"""The notation of shapes: what it reads, and where it says that something is wrong."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_jax.cli.shapes import parse_shapes
from sbp_jax.errors import SbpError


def of(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[8,128]", (of(8, 128),)),
        ("f32[]", (of(),)),
        (" f32 [ 8 , 1_000 ] , bf16[4,], ", (of(8, 1000), of(4, dtype=jnp.bfloat16))),
        ('{"w 1": s32[4], b: bool[2]}', ({"w 1": of(4, dtype=jnp.int32), "b": of(2, dtype=jnp.bool_)},)),
        ("{a: {b: [f32[1], f32[2]]}, c: ()}, ()", ({"a": {"b": [of(1), of(2)]}, "c": ()}, ())),
        ("(f32[1],), [f32[2]*2, u8[3]]", ((of(1),), [of(2), of(2), of(3, dtype=jnp.uint8)])),
        ("f32[2]*3", (of(2),) * 3),
        ("[{w: f32[2]} * 2]", ([{"w": of(2)}, {"w": of(2)}],)),
        ("0.5, -3, 1e-3, True, None", (0.5, -3, 1e-3, True, None)),
        ("float16[0], int8[1], pred[1]", (of(0, dtype=jnp.float16), of(1, dtype=jnp.int8), of(1, dtype=jnp.bool_))),
        ("{0: f32[1], 'layers/1.w-x': f32[2]}", ({"0": of(1), "layers/1.w-x": of(2)},)),
    ],
)
def test_what_is_read(text: str, expected) -> None:
    assert parse_shapes(text) == expected


def test_random_keys() -> None:
    (one, many) = parse_shapes("key[], key[8]")
    assert one.dtype == jax.random.key(0).dtype and (one.shape, many.shape) == ((), (8,))
    assert jax.eval_shape(jax.random.normal, one).shape == ()


@pytest.mark.parametrize(
    ("text", "caret", "says"),
    [
        ("", 0, "there are no arguments"),
        ("f31[8]", 0, "there is no dtype 'f31'; did you mean f32"),
        ("f32[8], flot32[2]", 8, "did you mean float32"),
        ("f32", 3, "expected the dimensions, f32[8,128], or f32[] for a scalar"),
        ("f32[8,x]", 6, "expected a dimension: an integer of 0 or more"),
        ("f32[8", 5, "expected ',' or ']'"),
        ("f32[-1]", 4, "expected a dimension"),
        ("f32[8] f32[2]", 7, "expected ',' or the end"),
        ("{w: f32[8]", 10, "expected ',' or '}'"),
        ("{w f32[8]}", 3, "expected ':' after the name 'w'"),
        ("{w: f32[1], w: f32[1]}", 12, "the name 'w' is there twice"),
        ("{'w: f32[1]}", 1, "has no closing '"),
        ("{w: f32[1]*2}", 10, "a name in a dict has one"),
        ("{: f32[1]}", 1, "expected a name"),
        ("[f32[8], ?]", 9, "expected an array (f32[8,128]), a dict"),
        ("(f32[8]]", 7, "expected ',' or ')'"),
        ("f32[2]*0", 7, "how many times, 1 to"),
        ("f32[2]*n", 7, "how many times, 1 to"),
        ("f64[2]", 0, "float64 needs JAX_ENABLE_X64=1"),
        ("f32[1],\n  f33[2]", 10, "there is no dtype 'f33'"),
    ],
)
def test_errors_show_the_place(text: str, caret: int, says: str) -> None:
    with pytest.raises(SbpError) as caught:
        parse_shapes(text)
    first, line, mark = str(caught.value).splitlines()
    assert first.startswith("--shapes: ") and says in first
    start = text.rfind("\n", 0, caret) + 1
    assert line == "  " + text[start:] and mark == "  " + " " * (caret - start) + "^"


_ARRAYS = st.tuples(st.sampled_from(["f32", "bf16", "s32", "int8", "pred"]), st.lists(st.integers(0, 9), max_size=3))
_TEXTS = st.recursive(
    _ARRAYS.map(lambda x: f"{x[0]}[{','.join(map(str, x[1]))}]"),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda x: f"[{', '.join(x)}]"),
        st.lists(inner, max_size=3).map(lambda x: f"({''.join(f'{y},' for y in x)})"),
        st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), inner, max_size=3).map(
            lambda x: "{" + ", ".join(f"{k}: {v}" for k, v in x.items()) + "}"
        ),
    ),
    max_leaves=6,
)


def written(x) -> str:
    if isinstance(x, dict):
        return "{" + ", ".join(f'"{k}": {written(v)}' for k, v in x.items()) + "}"
    if isinstance(x, list):
        return f"[{', '.join(map(written, x))}]"
    if isinstance(x, tuple):
        return f"({''.join(written(v) + ',' for v in x)})"
    return f"{x.dtype.name}{list(x.shape)}"


@settings(max_examples=50, deadline=None)
@given(_TEXTS)
def test_what_is_written_is_read(text: str) -> None:
    found = parse_shapes(text)
    assert parse_shapes(", ".join(map(written, found))) == found


@settings(max_examples=50, deadline=None)
@given(st.text("f32[](){},:*'k -1x", max_size=12))
def test_any_text_is_read_or_an_error_of_ours(text: str) -> None:
    try:
        assert isinstance(parse_shapes(text), tuple)
    except SbpError as error:
        assert str(error).endswith("^")
