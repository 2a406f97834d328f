"""OneFlow's documented examples, with the module's name changed and local parts as they are said to be."""

import numpy as np

import sbp_jax as flow


def test_construct_with_a_split() -> None:
    placement = flow.placement("cpu", [0, 1])
    sbp = flow.sbp.split(0)
    x = flow.randn(4, 5, placement=placement, sbp=sbp)
    assert x.shape == (4, 5)
    assert [part.shape for part in x.to_local()] == [(2, 5), (2, 5)]
    np.testing.assert_array_equal(np.concatenate(x.to_local()), x.numpy())


def test_construct_from_lists() -> None:
    p = flow.placement("cpu", ranks=[0, 1])
    x = flow.tensor([[1, 2, 3], [4, 5, 6]], placement=p, sbp=flow.sbp.split(0))
    assert x.shape == (2, 3)
    assert x.to_local(0).tolist() == [[1, 2, 3]]
    assert x.to_local(1).tolist() == [[4, 5, 6]]
    assert x.is_global


def test_local_to_global_on_two_ranks() -> None:
    placement = flow.placement("cpu", ranks=[0, 1])
    parts = [np.array([0.0, 1.0], np.float32)] * 2
    output = flow.local_to_global(parts, placement=placement, sbp=[flow.sbp.split(0)])
    assert output.shape == (4,)
    assert output.tolist() == [0, 1, 0, 1]
    assert output.sbp == (flow.sbp.split(0),)


def test_local_to_global_broadcast_takes_the_first_ranks_data() -> None:
    placement = flow.placement("cpu", ranks=[0, 1])
    parts = [np.array([1, 2, 3, 4]) + rank for rank in range(2)]
    assert flow.local_to_global(parts, placement=placement, sbp=flow.sbp.split(0)).tolist() == [1, 2, 3, 4, 2, 3, 4, 5]
    x = flow.local_to_global(parts, placement=placement, sbp=flow.sbp.broadcast)
    assert x.tolist() == [1, 2, 3, 4]
    assert all(part.tolist() == [1, 2, 3, 4] for part in x.to_local())


def test_from_split_on_ranks_0_1_to_broadcast_on_ranks_2_3() -> None:
    p0, p1 = flow.placement("cpu", ranks=[0, 1]), flow.placement("cpu", ranks=[2, 3])
    a0 = flow.randn(4, 5, placement=p0, sbp=flow.sbp.split(0))
    b0 = flow.randn(5, 8, placement=p0, sbp=flow.sbp.broadcast)
    y0 = flow.matmul(a0, b0)
    assert y0.sbp == (flow.sbp.split(0),)
    y1 = y0.to_global(placement=p1, sbp=flow.sbp.broadcast)
    assert y1.placement == p1 and y1.sbp == (flow.sbp.broadcast,)
    b1 = flow.randn(8, 6, placement=p1, sbp=flow.sbp.split(1))
    y2 = flow.matmul(y1, b1)
    assert y2.placement == p1 and y2.sbp == (flow.sbp.split(1),)
    expected = a0.numpy() @ b0.numpy() @ b1.numpy()
    np.testing.assert_allclose(y2.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert {d.id for d in y2.storage.devices()} == {2, 3}


def test_operands_split_differently_are_boxed_by_themselves() -> None:
    placement = flow.placement("cpu", ranks=[0, 1])
    x = flow.randn(4, 6, placement=placement, sbp=flow.sbp.split(0))
    y = flow.randn(4, 6, placement=placement, sbp=flow.sbp.split(1))
    z = x + y
    assert z.sbp in ((flow.sbp.split(0),), (flow.sbp.split(1),))
    np.testing.assert_array_equal(z.numpy(), x.numpy() + y.numpy())


def test_two_dimensional_signatures() -> None:
    placement = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
    a = flow.tensor([[1, 2], [3, 4], [5, 6], [7, 8]], placement=placement, sbp=(flow.sbp.broadcast, flow.sbp.split(0)))
    assert [part.tolist() for part in a.to_local()] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]] * 2


def test_partial_terms_add_up() -> None:
    placement = flow.placement("cpu", ranks=[0, 1])
    x = flow.local_to_global(
        [np.ones((2, 2), np.float32), 2 * np.ones((2, 2), np.float32)], placement=placement, sbp=flow.sbp.partial_sum
    )
    np.testing.assert_array_equal(x.numpy(), 3 * np.ones((2, 2)))
    y = x.to_global(sbp=flow.sbp.split(0))
    assert [part.tolist() for part in y.to_local()] == [[[3, 3]], [[3, 3]]]
