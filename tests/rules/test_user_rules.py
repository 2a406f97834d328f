"""Rules of the user's own: the text they are written in, and functions that run by them."""

import itertools
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.rules.check import check
from sbp_jax.rules.notation import parse
from sbp_jax.trace import build

X = jnp.linspace(-1, 1, 32).reshape(8, 4)
W = jnp.linspace(-1, 1, 24).reshape(4, 6)
_names = (f"sbp_test_{k}" for k in itertools.count())


@sbp.register_rule("b k, k n -> b n", reduced={"k": "sum"}, linear=(0, 1))
def product(x: Any, w: Any) -> Any:
    return jax.pure_callback(lambda x, w: np.matmul(x, w), jax.ShapeDtypeStruct(
        (x.shape[0], w.shape[1]), x.dtype), x, w, vmap_method="expand_dims")  # fmt: skip


@sbp.register_rule("b (h d) -> b h, b (h d)", whole=("d",))
def norms(x: Any, heads: int) -> Any:
    parts = x.reshape(x.shape[0], -1, 2)
    return {"norm": jnp.sqrt((parts**2).sum(-1)), "unit": (parts * 2).reshape(x.shape)}


def user_op(function: Any, *args: Any) -> Any:
    (op,) = [op for op in build(jax.make_jaxpr(function)(*args)).nodes if op.name == "sbp.user"]
    return op


def test_a_registered_function_computes_what_it_did() -> None:
    np.testing.assert_allclose(product(X, W), X @ W, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(product)(X, W), X @ W, rtol=1e-6)
    assert set(norms(X, heads=2)) == {"norm", "unit"}
    assert norms.__name__ == "norms"


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
def test_its_strategies_are_sound(mesh: tuple[int, ...]) -> None:
    x, w = np.asarray(X), np.asarray(jnp.concatenate([W, W[:, :2]], 1))
    count, wrong = check(user_op(product, x, w), [x, w], mesh)
    assert wrong == [] and count > 5
    many = jax.vmap(product, in_axes=(0, None))
    count, wrong = check(user_op(many, np.stack([x, x]), w), [np.stack([x, x]), w], mesh)
    assert wrong == [] and count > 5


def test_grouped_dims_split_by_their_slowest_factor() -> None:
    x = np.asarray(X)
    op = user_op(lambda x: norms(x, heads=2), x)
    count, wrong = check(op, [x], (2,))
    assert wrong == [] and count == 3


def test_vmap_adds_a_dim_that_splits() -> None:
    op = user_op(jax.vmap(product, in_axes=(1, None), out_axes=1), jnp.stack([X, X, X], 1), W)
    assert op.params["call"].map.text == "b k, k n -> b n over v0"
    assert [x.shape for x in op.ins] == [(3, 8, 4), (4, 6)]


def test_gradients_are_those_of_the_body() -> None:
    @sbp.register_rule("b k, k n -> b n", reduced={"k": "sum"}, linear=(0, 1))
    def dot(x: Any, w: Any) -> Any:
        return x @ w

    def loss(dot: Any) -> Any:
        return jax.grad(lambda x, w: (dot(x, w) ** 2).sum(), (0, 1))

    for mine, plain in zip(loss(dot)(X, W), loss(jnp.matmul)(X, W), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5)
    user_op(loss(dot), X, W)  # the forward op stays in the program


def test_gradients_past_results_that_are_integers() -> None:
    pair = sbp.register_rule(lambda x: (x * 2, x > 0, jnp.argsort(x)), "a -> a, a, a", whole=("a",))
    gradient = jax.grad(lambda x: pair(x)[0].sum())(X[0])
    np.testing.assert_array_equal(gradient, np.full(4, 2.0))


def test_a_planned_function_hands_pieces_to_the_body() -> None:
    seen: list[tuple[int, ...]] = []

    @sbp.register_rule("b k, k n -> b n", reduced={"k": "sum"}, linear=(0, 1))
    def dot(x: Any, w: Any) -> Any:
        seen.append(x.shape)
        return x @ w

    def step(x: Any, w: Any) -> Any:
        return jnp.tanh(dot(x, w)).sum(1)

    placement = sbp.placement("cpu", ranks=[0, 1, 2, 3])
    x, w = jnp.linspace(-1, 1, 4096 * 64).reshape(4096, 64), jnp.linspace(-1, 1, 64 * 32).reshape(64, 32)
    result = sbp.auto_parallel(step, placement=placement)(x, w)
    np.testing.assert_allclose(result, jnp.tanh(x @ w).sum(1), rtol=1e-4, atol=1e-4)
    assert (1024, 64) in seen


def test_a_primitive_gets_its_rule_by_name() -> None:
    primitive = jex.Primitive(next(_names))
    primitive.def_impl(lambda x: x * 2)
    primitive.def_abstract_eval(lambda x: x)
    assert sbp.register_rule(primitive, "a b -> a b", linear=(0,)) is primitive
    sbp.register_rule(primitive.name, "a b -> a b", linear=(0,))  # again: a cell of a notebook run twice
    (op,) = [op for op in build(jax.make_jaxpr(primitive.bind)(X)).nodes if op.name == primitive.name]
    count, wrong = check(op, [np.asarray(X)], (2,))
    assert wrong == [] and count == 4


def test_a_primitive_with_a_factor_map_keeps_it() -> None:
    with pytest.raises(sbp.SbpError, match=r"primitive 'tanh' has a factor map already"):
        sbp.register_rule("tanh", "a -> a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b k, k n -> b n", "k is missing from a result: say reduced={'k': 'sum'} where the pieces' results add up to "
         "it, or whole=('k',)\n  b k, k n -> b n\n    ^"),
        ("b k -> b k m", "m is in no operand, so no device could make only its piece: write _\n  b k -> b k m\n"
         "             ^"),
        ("b b -> b", "b is twice in one tensor\n  b b -> b\n    ^"),
        ("a (b c -> a", "parentheses hold names only, and close before anything else\n  a (b c -> a\n         ^"),
        ("a (b c", "not closed\n  a (b c\n    ^"),
        ("a ) -> a", "nothing to close\n  a ) -> a\n    ^"),
        ("a () -> a", "empty parentheses: write _\n  a () -> a\n     ^"),
        ("a $ -> a", "names, parentheses, _ , commas and -> make a factor map\n  a $ -> a\n    ^"),
        ("a b", "one -> stands between operands and results\n  a b\n  ^"),
        ("a -> a -> a", "one -> stands between operands and results\n  a -> a -> a\n         ^"),
    ],
)  # fmt: skip
def test_malformed_maps_are_pointed_at(text: str, message: str) -> None:
    with pytest.raises(sbp.SignatureError) as error:
        parse(text)
    assert str(error.value) == f"malformed factor map: {message}"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "a -> a",
            {"reduced": {"z": "sum"}},
            r"reduced=\{'z': 'sum'\}: names of operands of 'a -> a', each with one",
        ),
        ("a -> _", {"reduced": {"a": "mean"}}, r"reduced=\{'a': 'mean'\}"),
        ("a -> a", {"whole": ("z",)}, r"'z' is not in the factor map 'a -> a'"),
        ("a -> a", {"linear": (1,)}, r"linear=\(1,\): 'a -> a' has the operands 0 to 0"),
    ],
)
def test_words_about_names_that_are_not_there(text: str, options: Any, message: str) -> None:
    with pytest.raises(sbp.SignatureError, match=message):
        parse(text, **options)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a b c -> a b c", {}, r"operand 0 has 3 dim\(s\) in it, but shape \(8, 4\)"),
        ("a b, a -> a b", {}, r"it has 2 operand\(s\), the call has 1"),
        ("a (b c) -> a (b c)", {}, r"the lengths in \(b c\) of operand 0 follow from no other dim"),
        ("a b -> b a", {}, r"a dim of result 0 is 8 long, but b is 4"),
    ],
)
def test_a_map_that_does_not_fit_the_call(text: str, options: Any, message: str) -> None:
    function = sbp.register_rule(lambda x: x, text, **options)
    with pytest.raises(sbp.SignatureError, match=message):
        jax.make_jaxpr(function)(X)


def test_targets_that_are_none() -> None:
    with pytest.raises(sbp.SbpError, match="takes a function, a primitive or its name, got 3"):
        sbp.register_rule(3, "a -> a")
    with pytest.raises(sbp.SbpError, match="takes a factor map, got only"):
        sbp.register_rule(lambda x: x)
