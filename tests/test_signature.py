"""Signatures: notation, meaning, errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sbp_jax as sbp
from sbp_jax.signature import local_shape, signature_for

components = st.one_of(
    st.integers(-4, 9).map(sbp.split),
    st.just(sbp.broadcast),
    st.sampled_from([sbp.partial_sum, sbp.partial_max, sbp.partial_min]),
)
signatures = st.lists(components, min_size=0, max_size=4).map(lambda c: sbp.Signature(tuple(c)))


@given(signatures)
def test_text_and_constructor_round_trip(s: sbp.Signature) -> None:
    assert sbp.Signature.parse(str(s)) == s
    names = {"Signature": sbp.Signature, "Split": sbp.Split, "Broadcast": sbp.Broadcast, "Partial": sbp.Partial}
    assert eval(repr(s), names) == s


@pytest.mark.parametrize(
    ("component", "text"),
    [(sbp.split(0), "S(0)"), (sbp.broadcast, "B"), (sbp.broadcast(), "B"), (sbp.partial_sum, "P"),
     (sbp.partial_max, "P(max)"), (sbp.partial_min, "P(min)")],
)  # fmt: skip
def test_notation(component: object, text: str) -> None:
    assert str(component) == text


@pytest.mark.parametrize(
    "given_", ["(S(0), B)", "[S(0),B]", " S( 0 ) , B ", [sbp.split(0), "B"], ("S(0)", sbp.broadcast)]
)
def test_what_is_accepted(given_: object) -> None:
    assert sbp.Signature.of(given_) == sbp.Signature((sbp.split(0), sbp.broadcast))  # pyright: ignore


@pytest.mark.parametrize("text", ["S", "S()", "Q", "P(mean)", "S(0) B", "B,,B"])
def test_bad_notation(text: str) -> None:
    with pytest.raises(sbp.SignatureError):
        sbp.Signature.parse(text)


def test_length_is_the_number_of_axes() -> None:
    with pytest.raises(sbp.SignatureError, match=r"has 1 component\(s\), but the placement has 2"):
        signature_for("B", 2, (2, 4))


def test_negative_dims_and_dims_out_of_range() -> None:
    assert signature_for("S(-1)", 3, (2,)) == sbp.Signature((sbp.split(2),))
    with pytest.raises(sbp.SignatureError, match="the tensor has rank 2"):
        signature_for("S(2)", 2, (2,))


@pytest.mark.parametrize(
    ("text", "shape", "mesh", "local"),
    [("S(0), S(0)", (16, 3), (2, 4), (2, 3)), ("S(1), B", (3, 16), (2, 4), (3, 8)), ("P, B", (3,), (2, 4), (3,)),
     ("S(0), S(1), S(0)", (8, 6), (2, 3, 2), (2, 2)), ("S(0)", (0, 3), (4,), (0, 3))],
)  # fmt: skip
def test_local_shape(text: str, shape: tuple[int, ...], mesh: tuple[int, ...], local: tuple[int, ...]) -> None:
    assert local_shape(shape, sbp.Signature.parse(text), mesh) == local


def test_errors_are_value_errors() -> None:
    assert issubclass(sbp.SbpError, ValueError) and issubclass(sbp.SignatureError, sbp.SbpError)
