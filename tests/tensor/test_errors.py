"""Bad input: each mistake an error of its own that says what was given and what is possible."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp

LINE2 = sbp.placement("cpu", [0, 1])
LINE4 = sbp.placement("cpu", [0, 1, 2, 3])
SQUARE = sbp.placement("cpu", [[0, 1], [2, 3]])


def x(signature: str = "S(0)") -> sbp.GlobalTensor:
    return sbp.randn(8, 4, placement=LINE4, sbp=signature, seed=0)


def test_signatures_that_do_not_fit() -> None:
    with pytest.raises(sbp.SignatureError, match=r"S\(2\).*rank 2, dimensions possible: 0..1"):
        x().to_global(sbp=sbp.split(2))
    with pytest.raises(sbp.SignatureError, match=r"has 2 component.*1 axis"):
        x().to_global(sbp="S(0), B")
    with pytest.raises(sbp.SignatureError, match="give sbp= as well"):
        x().to_global(placement=SQUARE)
    with pytest.raises(sbp.SignatureError, match="a scalar can only be B or P"):
        x().sum().to_global(sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match="only 4 element"):
        sbp.randn(4, 9, placement=sbp.placement("cpu", list(range(8))), sbp="S(0)", seed=0)


def test_placements() -> None:
    y = sbp.randn(8, 4, placement=LINE2, sbp="S(0)", seed=0)
    with pytest.raises(sbp.PlacementError, match=r"different placements.*y\.to_global\(placement=x\.placement"):
        _ = x() + y
    with pytest.raises(sbp.PlacementError, match="different placements"):
        sbp.numpy.concatenate([x(), y])
    np.testing.assert_array_equal((x() + y.to_global(placement=LINE4, sbp=x().sbp)).numpy(), 2 * x().numpy())
    with pytest.raises(sbp.PlacementError, match="needs ranks"):
        sbp.zeros(4, 4, placement=sbp.placement("cpu", [0, 99]), sbp="S(0)")
    with pytest.raises(sbp.PlacementError, match="needs placement="):
        sbp.zeros(4, sbp="S(0)")
    with pytest.raises(sbp.PlacementError, match=r"must be a sbp.placement.*got 'cpu'"):
        sbp.zeros(4, placement="cpu", sbp="S(0)")  # pyright: ignore[reportArgumentType]
    with pytest.raises(sbp.PlacementError, match="abstract"):
        x().to_global(placement=sbp.placement.abstract((4,)))
    with pytest.raises(sbp.PlacementError, match=r"must be a sbp.placement"):
        x().to_global(placement=[0, 1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(sbp.PlacementError, match="no global tensor"):
        sbp.numpy.add(jnp.ones(3), jnp.ones(3))


def test_ranks() -> None:
    with pytest.raises(sbp.PlacementError, match=r"rank 7 is not in cpu\[axis0=4\]; the placement's ranks are"):
        x().to_local(rank=7)
    with pytest.raises(sbp.PlacementError, match=r"ranks \[5\] are not in"):
        sbp.local_to_global({0: np.ones(2), 5: np.ones(2)}, placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.PlacementError, match=r"components of ranks \[1\] are missing"):
        sbp.local_to_global({0: np.ones(2)}, placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.PlacementError, match=r"3 component.*holds 2 rank"):
        sbp.local_to_global([np.ones(2)] * 3, placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match="takes a list"):
        sbp.local_to_global(np.ones((2, 2)), placement=LINE2, sbp="S(0)")


def test_components_that_disagree() -> None:
    with pytest.raises(sbp.SignatureError, match=r"rank 0 has \(2, 3\), expected \(3, 3\); rank 1 has \(4, 3\)"):
        sbp.local_to_global([np.ones((2, 3)), np.ones((4, 3))], placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match=r"rank 1 has \(2, 4\), expected \(2, 3\)"):
        sbp.local_to_global([np.ones((2, 3)), np.ones((2, 4))], placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match=r"rank 1 has \(3,\), expected \(2,\)"):
        sbp.local_to_global([np.ones(2), np.ones(3)], placement=LINE2, sbp="P")
    with pytest.raises(sbp.SignatureError, match="same rank"):
        sbp.local_to_global([np.ones(2), np.ones((2, 2))], placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match="one dtype; got float32, int32"):
        sbp.local_to_global([np.ones(2, np.float32), np.ones(2, np.int32)], placement=LINE2, sbp="S(0)")


def test_dtypes() -> None:
    with pytest.raises(sbp.SignatureError, match="bool values have no partial terms"):
        sbp.tensor([True, False], placement=LINE2, sbp="P")
    with pytest.raises(sbp.SignatureError, match="bool values have no partial terms"):
        (x() > 0).to_global(sbp="P")
    with pytest.raises(sbp.SignatureError, match="numbers or bools"):
        sbp.tensor(["a", "b"], placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match="no order"):
        sbp.tensor([1j, 2.0], placement=LINE2, sbp="P(max)")
    with pytest.raises(sbp.SignatureError, match="no regular array"):
        sbp.tensor([[1], [2, 3]], placement=LINE2, sbp="S(0)")
    with pytest.raises(sbp.SignatureError, match="is no dtype"):
        sbp.zeros(4, dtype="float33", placement=LINE2, sbp="S(0)")


def test_shapes_that_do_not_go_together() -> None:
    with pytest.raises(sbp.SignatureError, match=r"add.*incompatible shapes"):
        _ = x() + sbp.zeros(3, 5, placement=LINE4)
    with pytest.raises(sbp.SignatureError, match="reshape"):
        x().reshape(5, 5)


def test_donated() -> None:
    tensor = x()
    jax.jit(lambda t: t + 1.0, donate_argnums=0)(tensor)
    tensor.storage.delete()  # simulated devices may not take what they are offered
    with pytest.raises(sbp.SbpError, match="multiply: an operand's buffers are gone: it was donated"):
        _ = tensor * 2.0
    with pytest.raises(sbp.SbpError, match="to_global: an operand's buffers are gone"):
        tensor.to_global(sbp="B")
    assert "donated or deleted" in repr(tensor)


def test_what_has_no_fixed_shape() -> None:
    with pytest.raises(sbp.SbpError, match="needs values to know the shape"):
        x().nonzero()
    with pytest.raises(TypeError, match=r"x\.at\[index\]\.set"):
        x()[0] = 1.0
    with pytest.raises(AttributeError, match="did you mean matmul"):
        sbp.numpy.matmull(x(), x())
    with pytest.raises(sbp.SbpError, match="one element"):
        x().item()


def test_traced() -> None:
    with pytest.raises(sbp.SbpError, match=r"sbp\.apply\(jax\.vmap\(fn\), x\)"):
        jax.vmap(lambda t: t + 1.0)(x())
    with pytest.raises(sbp.SbpError, match="gradient with respect to a partial tensor"):
        jax.grad(lambda t: (t * t).sum().array)(x("P"))
    with pytest.raises(sbp.SbpError, match=r"what a jitted function returns: redistribute .*or return x\.array"):
        jax.grad(jax.jit(lambda t: (t * t).sum()))(x())
    assert jax.grad(jax.jit(lambda t: (t * t).sum().array))(x()).shape == x().shape
    with pytest.raises(sbp.PlacementError, match="stays on its devices"):
        jax.jit(lambda t: t.to_global(placement=LINE2, sbp="S(0)"))(x())
    with pytest.raises(sbp.SbpError, match="to_local needs the values"):
        jax.jit(lambda t: t.to_local())(x())
