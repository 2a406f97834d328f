"""The design's cases with known answers (behaviour.md), by their numbers, where they concern tensors and boxing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp

LINE2 = sbp.placement("cpu", [0, 1])
LINE4 = sbp.placement("cpu", [0, 1, 2, 3])
SQUARE = sbp.placement("cpu", [[0, 1], [2, 3]])
ONES = np.ones((4, 4), np.float32)


def locals_of(x: sbp.GlobalTensor) -> list[np.ndarray]:
    return [np.asarray(part) for part in x.to_local()]


def same(found: list[np.ndarray], expected: list) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_1_the_outermost_component_acts_on_the_outermost_axis() -> None:
    x = sbp.tensor(np.arange(8).reshape(4, 2), placement=SQUARE, sbp="S(0), S(1)")
    assert [p.tolist() for p in x.to_local()] == [[[0], [2]], [[1], [3]], [[4], [6]], [[5], [7]]]
    with pytest.raises(sbp.SignatureError, match="has 1 component"):
        x.to_global(sbp="S(0)")


def test_2_uneven_splits_are_balanced() -> None:
    six = sbp.placement("cpu", list(range(6)))
    x = sbp.arange(20, placement=six, sbp=sbp.split(0))
    assert [len(p) for p in x.to_local()] == [4, 4, 3, 3, 3, 3]
    nested = sbp.arange(6, placement=SQUARE, sbp="S(0), S(0)")
    assert [len(p) for p in nested.to_local()] == [2, 1, 2, 1]
    assert [len(p) for p in sbp.arange(6, placement=LINE4, sbp="S(0)").to_local()] == [2, 2, 1, 1]
    moved = nested.to_global(placement=LINE4, sbp="S(0)")
    assert [len(p) for p in moved.to_local()] == [2, 2, 1, 1] and moved.tolist() == list(range(6))


def test_3_dims_out_of_range_short_and_empty() -> None:
    assert sbp.zeros(2, 4, placement=LINE2, sbp=sbp.split(-1)).sbp == (sbp.split(1),)
    with pytest.raises(sbp.SignatureError, match="rank 2"):
        sbp.zeros(2, 4, placement=LINE2, sbp=sbp.split(2))
    with pytest.raises(sbp.SignatureError, match=r"only 3 element"):
        sbp.zeros(3, 4, placement=LINE4, sbp=sbp.split(0))
    empty = sbp.zeros(0, 4, placement=LINE4, sbp=sbp.split(0))
    assert [p.shape for p in empty.to_local()] == [(0, 4)] * 4 and empty.numpy().shape == (0, 4)


def test_4_the_order_of_ranks_is_the_order_meant() -> None:
    x = sbp.tensor([1, 2], placement=sbp.placement("cpu", [1, 0]), sbp=sbp.split(0))
    assert x.to_local(rank=1).tolist() == [1] and x.to_local(rank=0).tolist() == [2]
    with pytest.raises(sbp.PlacementError, match="repeated"):
        sbp.placement("cpu", [0, 0])


def test_5_broadcast_to_partial() -> None:
    same(locals_of(sbp.tensor(ONES, placement=LINE2).to_global(sbp="P")), [ONES, 0 * ONES])


def test_6_split_to_partial() -> None:
    x = sbp.local_to_global([ONES, ONES], placement=LINE2, sbp="S(0)").to_global(sbp="P")
    assert x.shape == (8, 4)
    same(locals_of(x), [np.vstack([ONES, 0 * ONES]), np.vstack([0 * ONES, ONES])])


def test_7_from_one_rank_to_partial_on_two() -> None:
    x = sbp.tensor(ONES, placement=sbp.placement("cpu", [0]))
    same(locals_of(x.to_global(placement=LINE2, sbp="P")), [ONES, 0 * ONES])


def test_8_split_and_partial_to_whole() -> None:
    x = sbp.local_to_global([ONES] * 4, placement=SQUARE, sbp="S(0), P").to_global(sbp="B, B")
    same(locals_of(x), [np.full((8, 4), 2)] * 4)


def test_9_rank_times_ones() -> None:
    parts = [rank * ONES for rank in range(4)]
    x = sbp.local_to_global(parts, placement=SQUARE, sbp="P, S(0)").to_global(sbp="S(0), S(0)")
    same(locals_of(x), [np.full((2, 4), v) for v in (2, 2, 4, 4)])


def test_10_from_one_rank_to_broadcast_and_split() -> None:
    x = sbp.tensor([1, 2, 3, 4], placement=sbp.placement("cpu", [0])).to_global(placement=SQUARE, sbp="B, S(0)")
    same(locals_of(x), [[1, 2], [3, 4], [1, 2], [3, 4]])


def test_11_uneven_there_and_back() -> None:
    x = sbp.randn(25, 33, placement=LINE4, seed=3)
    y = x.to_global(sbp="S(0)")
    assert [p.shape[0] for p in y.to_local()] == [7, 6, 6, 6]
    np.testing.assert_array_equal(y.to_global(sbp="S(1)").to_global(sbp="B").numpy(), x.numpy())


def test_12_local_and_back() -> None:
    x = sbp.tensor(np.arange(25).reshape(5, 5), placement=SQUARE, sbp="S(0), S(1)")
    assert [p.shape for p in x.to_local()] == [(3, 3), (3, 2), (2, 3), (2, 2)]
    back = sbp.local_to_global(x.to_local(), placement=SQUARE, sbp="S(0), S(1)")
    assert back.tolist() == np.arange(25).reshape(5, 5).tolist()


def test_13_a_cycle_of_three_splits() -> None:
    cube = sbp.placement("cpu", np.arange(8).reshape(2, 2, 2))
    x = sbp.randn(4, 6, 8, placement=cube, sbp="S(0), S(1), S(2)", seed=0)
    y = x.to_global(sbp="S(1), S(2), S(0)")
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    assert sbp.boxing.route(x.sbp, y.sbp, cube, x.shape).collectives == ("permute",)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [("S(0)", "B", "S(0)"), ("B", "S(1)", "S(1)"), ("S(1)", "S(0)", "P"), ("P", "B", "P"), ("B", "P", "P")],
)
def test_14_matmul(a: str, b: str, c: str) -> None:
    x, y = sbp.randn(4, 8, placement=LINE4, sbp=a, seed=0), sbp.randn(8, 12, placement=LINE4, sbp=b, seed=1)
    z = x @ y
    assert str(z.sbp) == c
    np.testing.assert_allclose(z.numpy(), x.numpy() @ y.numpy(), rtol=1e-5, atol=1e-5)


def test_14_matmul_batches_split_together() -> None:
    x, y = (sbp.randn(4, 3, 5, placement=LINE4, sbp="S(0)", seed=k) for k in range(2))
    assert str((x @ y.swapaxes(1, 2)).sbp) == "S(0)"


def test_15_16_sums_of_terms() -> None:
    p = sbp.local_to_global([ONES * (k + 1) for k in range(4)], placement=LINE4, sbp="P")
    b = sbp.randn(4, 4, placement=LINE4, seed=0)
    assert str((p + p).sbp) == "P"
    assert str((p * b).sbp) == str((b * p).sbp) == str((p / b).sbp) == "P"
    assert str((-p).sbp) == str((2 * p).sbp) == str((p - p).sbp) == "P"
    # What is whole becomes a term of its own on the first device, for nothing; no term receives it twice.
    for y, expected in ((p + b, p.numpy() + b.numpy()), (p + 1, p.numpy() + 1), (b - p, b.numpy() - p.numpy())):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    for y, expected in (
        (p * p, p.numpy() ** 2), (b / p, b.numpy() / p.numpy()),
        (sbp.apply(jax.nn.relu, -p), np.zeros((4, 4))), (sbp.numpy.exp(p), np.exp(p.numpy())), (p > 3, p.numpy() > 3),
    ):  # fmt: skip
        assert "P" not in str(y.sbp)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


def test_17_reductions() -> None:
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    assert str(x.sum(1).sbp) == "S(0)" and str(x.sum(0).sbp) == "P" and str(x.sum(0).sum().sbp) == "P"
    assert str(x.max(0).sbp) == "P(max)" and str(x.min().sbp) == "P(min)" and str(x.mean(0).sbp) == "P"
    for name in ("sum", "max", "min", "mean", "var", "std", "argmax", "argmin", "prod"):
        for axis in (None, 0, 1):
            found = getattr(x, name)(axis=axis)
            assert found.ndim == (0 if axis is None else 1)
            np.testing.assert_allclose(found.numpy(), getattr(x.numpy(), name)(axis=axis), rtol=1e-5, atol=1e-6)
    assert "P" not in str(x.argmax(0).sbp)


def test_19_embedding() -> None:
    table = sbp.randn(8, 4, placement=LINE4, seed=0)
    ids = sbp.tensor(np.array([[1, 7, 2], [0, 3, 3], [5, 5, 6], [7, 7, 0]]), placement=LINE4, sbp="S(0)")
    look_up = sbp.numpy.take
    cases = {("B", "S(0)"): "S(0)", ("S(1)", "B"): "S(2)", ("S(0)", "B"): "P"}
    for (t, i), out in cases.items():
        y = look_up(table.to_global(sbp=t), ids.to_global(sbp=i), axis=0)
        assert str(y.sbp) == out
        np.testing.assert_array_equal(y.numpy(), table.numpy()[ids.numpy()])


def test_19_embedding_gradient() -> None:
    ids = sbp.tensor(np.array([1, 7, 2, 0, 3, 3, 5, 5]), placement=LINE4, sbp="S(0)")
    g = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=1)

    def gradient(ids, g):
        return jnp.zeros((8, 4)).at[ids].add(g)

    y = sbp.apply(gradient, ids, g)
    assert str(y.sbp) == "P"
    np.testing.assert_allclose(y.numpy(), gradient(ids.array, g.array), rtol=1e-6)


def test_22_slices_of_terms() -> None:
    p = sbp.local_to_global([ONES * (k + 1) for k in range(4)], placement=LINE4, sbp="P")
    for y in (p[1:3], p[:, ::2], p.T, p.reshape(2, 8), sbp.numpy.concatenate([p, p]), sbp.numpy.flip(p, 0)):
        assert str(y.sbp) == "P" and np.all(y.numpy() == 10)
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    ways = (x[:, 1:3], sbp.numpy.pad(x, ((0, 0), (1, 1))), sbp.numpy.flip(x, 1), sbp.numpy.concatenate([x, x], axis=1))
    for y in ways:
        assert str(y.sbp) == "S(0)"


def test_23_reshape_without_moving() -> None:
    x = sbp.tensor(np.arange(32).reshape(8, 4), placement=SQUARE, sbp="S(0), S(0)")
    y = x.reshape(2, 4, 4)
    assert str(y.sbp) == "S(0), S(1)" and y.tolist() == np.arange(32).reshape(2, 4, 4).tolist()
    for mine, its in zip(x.to_local(), y.to_local(), strict=True):
        np.testing.assert_array_equal(np.ravel(mine), np.ravel(its))
    nine = sbp.randn(9, 9, 8, placement=LINE2, sbp="S(0)", seed=0)
    np.testing.assert_array_equal(nine.reshape(81, 8).numpy(), nine.numpy().reshape(81, 8))


@pytest.mark.parametrize("signature", ["S(0)", "S(1)", "B", "P"])
def test_25_random_numbers_are_those_of_one_device(signature: str) -> None:
    x = sbp.randn(6, 5, placement=LINE4, sbp=signature, seed=7)
    np.testing.assert_array_equal(x.numpy(), jax.random.normal(jax.random.key(7), (6, 5)))
    y = sbp.rand(6, 5, placement=LINE4, sbp=signature, seed=7)
    np.testing.assert_array_equal(y.numpy(), jax.random.uniform(jax.random.key(7), (6, 5)))
    z = sbp.randint(0, 100, (6, 5), placement=LINE4, sbp=signature, seed=7)
    np.testing.assert_array_equal(z.numpy(), jax.random.randint(jax.random.key(7), (6, 5), 0, 100))

    def dropout(x):
        return jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, x.shape), x, 0)

    np.testing.assert_array_equal(sbp.apply(dropout, x).numpy(), dropout(x.array))


def test_27_data_parallel_linear_regression() -> None:
    """The gradient of the mean over both ranks' samples, on both ranks."""
    x = sbp.local_to_global([np.full((1, 2), k + 1, np.float32) for k in range(2)], placement=LINE2, sbp="S(0)")
    w = sbp.ones(2, placement=LINE2)
    gradient = sbp.apply(jax.grad(lambda w, x: (x @ w).mean()), w, x).to_global(sbp="B")
    same(locals_of(gradient), [[1.5, 1.5]] * 2)


def test_28_reduce_scatter() -> None:
    part = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    x = sbp.local_to_global([part, part], placement=LINE2, sbp="P").to_global(sbp="S(0)")
    assert x.to_local(0).tolist() == [[2, 4, 6], [8, 10, 12]]
