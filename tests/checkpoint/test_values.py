"""What goes into a checkpoint comes out of it as it was, or where it is asked to be."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec

import sbp_jax as sbp

P4 = sbp.placement("cpu", ranks=range(4), axis_names=("dp",))
P3 = sbp.placement("cpu", ranks=[7, 0, 5], axis_names=("dp",))
P22 = sbp.placement("cpu", ranks=[[0, 1], [2, 3]], axis_names=("dp", "tp"))
P23 = sbp.placement("cpu", ranks=[[0, 1, 2], [3, 4, 5]], axis_names=("tp", "dp"))


def again(path: Path, state: Any, like: Any = None, placement: Any = None, **options: Any) -> Any:
    sbp.checkpoint.save(path / "state", state, **options)
    return sbp.checkpoint.restore(path / "state", like, placement)


def bits(x: Any) -> bytes:
    x = np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.extended) else x)
    return np.ascontiguousarray(x).tobytes()


@pytest.mark.parametrize(
    "dtype",
    "bool int8 uint8 int16 int32 uint32 float16 bfloat16 float32 complex64 int4 uint4 int2 float8_e4m3fn "
    "float8_e5m2 float8_e4m3b11fnuz float4_e2m1fn".split(),
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 2)])
def test_every_dtype_and_shape(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(math.prod(shape)).reshape(shape) % 2
    x = jnp.asarray(values.astype(np.dtype(dtype)))
    found = again(tmp_path, {"x": x, "y": np.asarray(x)}, chunk_bytes=8)
    assert isinstance(found["x"], jax.Array) and isinstance(found["y"], np.ndarray)
    for y in found.values():
        assert (y.dtype, y.shape) == (x.dtype, x.shape) and bits(y) == bits(x)


def test_python_leaves_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "int": -(10**40), "bool": True, "float": 0.1, "inf": -math.inf, "complex": 1e-3 + 2j, "text": "é/\n\x00",
        "bytes": b"\x00\xff", "none": None, "empty": {}, "list": [], "numpy": np.float64(2.5), "numpy_int": np.int8(-3),
        "time": np.array(["2020-01-01"], "datetime64[D]"), "big": np.arange(3, dtype=">f8"),
        "words": np.array(["a", "bcd"]),
        "nested": [1, [2.0, {"a/b": 3, "a~1b": 4}], {5: 6}], "tuples": (1, [(2,), ()], {"a": (3, None)}),
    }  # fmt: skip
    found = again(tmp_path, state)
    assert set(found) == set(state)
    for key, value in state.items():
        assert type(found[key]) is type(value)
        if isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype
        assert np.all(found[key] == value), key
    assert math.isnan(again(tmp_path, math.nan))
    assert math.copysign(1, again(tmp_path, [-0.0])[0]) == -1


def test_nan_payloads_and_zeros_keep_their_bits(tmp_path: Path) -> None:
    x = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1], np.uint32).view(np.float32)
    assert bits(again(tmp_path, {"x": jnp.asarray(x)})["x"]) == x.tobytes()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys(tmp_path: Path, impl: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=impl), 8)
    spread = jax.device_put(keys, NamedSharding(P4.mesh, PartitionSpec("dp")))
    state = {"one": keys[0], "spread": spread, "none": keys[:0]}
    for like in (None, state):
        found = again(tmp_path, state, like)
        for name, x in state.items():
            assert found[name].dtype == x.dtype and found[name].shape == x.shape and bits(found[name]) == bits(x)
        assert found["spread"].sharding.is_equivalent_to(spread.sharding, 1)
    moved = again(tmp_path, state, placement=P22)
    assert bits(moved["spread"]) == bits(keys) and moved["spread"].sharding.mesh.shape == {"dp": 2, "tp": 2}


def test_weak_types_stay_weak_and_strong_ones_strong(tmp_path: Path) -> None:
    state = {
        "weak": jnp.asarray(2.5),
        "vector": jnp.full((3,), 1),
        "strong": jnp.float32(2.5),
        "spread": jax.device_put(jnp.full((4,), 2.0), NamedSharding(P4.mesh, PartitionSpec("dp"))),
    }
    found = again(tmp_path, state)
    for name, x in state.items():
        assert (found[name].weak_type, found[name].committed) == (x.weak_type, x.committed), name
        assert found[name].sharding == x.sharding and bits(found[name]) == bits(x)
    assert state["weak"].weak_type and not state["strong"].weak_type


SIGNATURES = [
    (P4, "S(0)"), (P4, "S(1)"), (P4, "B"), (P4, "P"), (P22, "S(0), S(0)"), (P22, "S(1), S(0)"), (P22, "P, S(1)"),
    (P22, "B, P"), (P22, "S(0), P"), (P23, "S(0), S(1)"), (P23, "S(1), S(1)"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "signature"), SIGNATURES)
def test_global_tensors_in_every_signature_go_to_others(tmp_path: Path, where: Any, signature: str) -> None:
    x = sbp.randn(11, 7, placement=where, sbp="B" if where.ndim == 1 else "B, B", seed=4).to_global(sbp=signature)
    x = x + x if "P" in signature else x  # terms, not only the value with zeros
    value = x.numpy()
    found = again(tmp_path, {"x": x}, chunk_bytes=50)["x"]
    assert (found.placement, found.sbp) == (x.placement, x.sbp)
    np.testing.assert_array_equal(found.numpy(), value)
    k = SIGNATURES.index((where, signature))
    for to, other in (SIGNATURES + SIGNATURES)[k + 1 : k + 9 : 2]:  # four others, each from four
        like = {"x": sbp.zeros(11, 7, placement=to, sbp=other)}
        found = sbp.checkpoint.restore(tmp_path / "state", like)["x"]
        assert (found.placement, found.sbp) == (to, like["x"].sbp)
        np.testing.assert_array_equal(found.numpy(), value)


def test_four_devices_to_three_which_does_not_divide(tmp_path: Path) -> None:
    x = sbp.randn(8, 5, placement=P4, sbp="S(0)", seed=1)
    y = jax.device_put(jnp.arange(40.0).reshape(8, 5), NamedSharding(P4.mesh, PartitionSpec("dp")))
    z = jax.device_put(jnp.arange(24.0).reshape(8, 3), NamedSharding(P4.mesh, PartitionSpec("dp")))
    with pytest.warns(UserWarning, match=r"y \[8, 5\] on cpu\[dp=3\] \(dp: S\(0\) became B\), z .*became S\(1\)"):
        found = again(tmp_path, {"x": x, "y": y, "z": z}, placement=P3)
    assert [len(part) for part in found["x"].to_local()] == [3, 3, 2] and found["x"].placement == P3
    np.testing.assert_array_equal(found["x"].numpy(), x.numpy())
    np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(found["z"], z)
    assert found["z"].sharding.spec == PartitionSpec(None, "dp")
    back = again(tmp_path, found, {"x": x, "y": y, "z": z})
    assert back["x"].sbp == x.sbp and back["y"].sharding == y.sharding
    np.testing.assert_array_equal(back["x"].numpy(), x.numpy())


def test_a_jax_array_that_cannot_be_split_so_says_what_can(tmp_path: Path) -> None:
    like = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(P4.mesh, PartitionSpec("dp")))
    assert again(tmp_path, {"x": jnp.arange(8.0)}, {"x": like})["x"].sharding == like.sharding
    uneven = NamedSharding(P3.mesh, PartitionSpec("dp"))
    with pytest.raises(sbp.CheckpointError, match=r"x: float32\[8\] cannot be a jax.Array in .* global tensor"):
        sbp.checkpoint.restore(tmp_path / "state", {"x": uneven})


def test_axes_of_the_same_name_keep_what_they_split(tmp_path: Path) -> None:
    x = jax.device_put(jnp.arange(48.0).reshape(8, 6), NamedSharding(P22.mesh, PartitionSpec("dp", "tp")))
    with pytest.warns(UserWarning, match="dp: S"):  # 8 rows over 3
        found = again(tmp_path, {"x": x}, placement=P23)["x"]
    np.testing.assert_array_equal(found, x)
    mesh = jax.make_mesh((2, 2, 2), ("tp", "pp", "dp"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    found = sbp.checkpoint.restore(tmp_path / "state", placement=mesh)["x"]
    assert found.sharding.spec == PartitionSpec("dp", "tp") and found.sharding.mesh.axis_names == ("tp", "pp", "dp")
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("spec", [PartitionSpec("tp", "dp"), PartitionSpec(("tp", "dp")), PartitionSpec(None, "dp")])
def test_arrays_sharded_anyhow_go_to_the_sharding_of_like(tmp_path: Path, spec: PartitionSpec) -> None:
    value = np.arange(96, dtype=np.int16).reshape(8, 12)
    x = jax.device_put(value, NamedSharding(P22.mesh, spec))
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    for to in (PartitionSpec("a", "b"), PartitionSpec(("b", "a")), PartitionSpec(), PartitionSpec(None, "a")):
        like = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, to))
        found = again(tmp_path, {"x": x}, {"x": like}, chunk_bytes=20)["x"]
        assert found.sharding == like.sharding
        np.testing.assert_array_equal(found, value)


class Model(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.Dense(3)(nnx.relu(linen.Dense(8)(x)))


def test_a_linen_train_state(tmp_path: Path) -> None:
    model = Model()
    state = TrainState.create(
        apply_fn=model.apply, params=model.init(jax.random.key(0), jnp.ones((1, 4))), tx=optax.adamw(1e-3)
    )
    later = jax.jit(lambda s: s.apply_gradients(grads=jax.tree.map(jnp.ones_like, s.params)))(state)
    found = again(tmp_path, later, state)  # its step is an array after one step, a number in a new state
    assert jax.tree.structure(found) == jax.tree.structure(state) and int(found.step) == 1
    jax.tree.map(np.testing.assert_array_equal, found, later)
    found = again(tmp_path, state, later)
    assert isinstance(found.step, jax.Array) and found.step.dtype == later.step.dtype and found.step == 0
    shapes = jax.eval_shape(lambda: later)
    jax.tree.map(np.testing.assert_array_equal, again(tmp_path, later, shapes), later)


def test_an_nnx_state_and_an_optimizer(tmp_path: Path) -> None:
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    state = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
    found = again(tmp_path, state, state)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, found, state)
    plain = sbp.checkpoint.restore(tmp_path / "state")
    assert plain["model"]["kernel"].shape == (4, 3)
    nnx.update(model, found["model"])


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    gone = jnp.ones(3)
    gone.delete()
    for state, told in [
        ({"a": {"f": print}}, "the leaf 'a/f' is builtin_function_or_method"),
        ([1, np.array([object()])], "the leaf '1' is a numpy array of dtype object"),
        ({"gone": gone}, "gone was donated"),
    ]:
        with pytest.raises(sbp.CheckpointError, match=told):
            sbp.checkpoint.save(tmp_path / "x", state)
    with pytest.raises(sbp.CheckpointError, match="data= must be made of"):
        sbp.checkpoint.save(tmp_path / "x", {}, data={"f": print})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_model_lists_the_differences(tmp_path: Path) -> None:
    saved = {"layer": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}, "head": jnp.ones(2, jnp.bfloat16), "step": 1}
    sbp.checkpoint.save(tmp_path / "state", saved)
    like = {"layer": {"kernel": jnp.ones((4, 4)), "biases": jnp.ones(4)}, "head": jnp.ones(2), "step": 1.0}
    with pytest.raises(sbp.CheckpointError) as error:
        sbp.checkpoint.restore(tmp_path / "state", like)
    for line in (
        "5 differences",
        "head: saved bfloat16[2], expected float32[2]",
        "layer/kernel: saved float32[3, 4], expected float32[4, 4]",
        "layer/biases: not in the checkpoint, which has layer/bias",
        "layer/bias: only in the checkpoint",
        "step: saved a Python int, expected a Python float",
    ):
        assert line in str(error.value)


def test_nothing_is_cast_where_jax_would_do_so_silently(tmp_path: Path) -> None:
    state = {"x": np.arange(3, dtype=np.float64)}
    assert again(tmp_path, state)["x"].dtype == np.float64
    with pytest.raises(sbp.CheckpointError, match=r"saved float64\[3\], expected float32\[3\]"):
        sbp.checkpoint.restore(tmp_path / "state", {"x": jnp.zeros(3)})
    with pytest.raises(sbp.CheckpointError, match="jax_enable_x64"):
        sbp.checkpoint.restore(tmp_path / "state", {"x": NamedSharding(P4.mesh, PartitionSpec())})
    with jax.enable_x64(True):
        sbp.checkpoint.save(tmp_path / "wide", {"x": jnp.arange(3.0)})
        assert sbp.checkpoint.restore(tmp_path / "wide")["x"].dtype == np.float64
    with pytest.raises(sbp.CheckpointError, match="jax_enable_x64"):
        sbp.checkpoint.restore(tmp_path / "wide")


def test_devices_that_are_not_here(tmp_path: Path) -> None:
    sbp.checkpoint.save(tmp_path / "state", {"x": sbp.ones(4, 2, placement=P4, sbp="S(0)")})
    manifest = tmp_path / "state" / "manifest.json"
    from sbp_jax.checkpoint import manifest as manifests

    told = manifests.read(tmp_path / "state")
    far = sbp.placement("cpu", ranks=range(90, 94), axis_names=("dp",))
    (leaf,) = told.leaves
    manifest.write_text(
        manifests.to_text(dataclasses.replace(told, leaves=(dataclasses.replace(leaf, placement=far),)))
    )
    with pytest.raises(sbp.PlacementError, match=r"Pass placement="):
        sbp.checkpoint.restore(tmp_path / "state")
    assert sbp.checkpoint.restore(tmp_path / "state", placement=P3)["x"].numpy().sum() == 8


def test_a_plan_and_data_go_with_it(tmp_path: Path) -> None:
    @sbp.auto_parallel(placement=P4)
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    w, x = jnp.ones((8, 4)), jnp.ones((16, 8))
    plan = step.plan(w, x)
    w = step(w, x)
    sbp.checkpoint.save(tmp_path / "state", {"w": w}, plan=plan, step=5, data={"position": [1, 2.5, None]})
    info = sbp.checkpoint.info(tmp_path / "state")
    assert (info.step, info.data, info.plan_fingerprint) == (5, {"position": [1, 2.5, None]}, plan.fingerprint)
    kept = info.plan()
    assert kept is not None and kept.to_json() == plan.to_json()
    found = sbp.checkpoint.restore(tmp_path / "state", {"w": plan.shardings()[0][0]})
    np.testing.assert_array_equal(found["w"], w)


def test_only_what_overlaps_is_read(tmp_path: Path) -> None:
    """A chunk is read whole, so what is read is at most what is needed, and one chunk more at each edge."""
    from sbp_jax.checkpoint import manifest as manifests
    from sbp_jax.checkpoint.layout import box_of_shape
    from sbp_jax.checkpoint.read import read_boxes

    x = np.arange(512 * 512, dtype=np.float32).reshape(512, 512)
    spread = jax.device_put(x, NamedSharding(P4.mesh, PartitionSpec("dp")))
    sbp.checkpoint.save(tmp_path / "state", {"x": spread}, chunk_bytes=1 << 14)
    manifest = manifests.read(tmp_path / "state")
    for box in [((0, 512), (0, 128)), ((128, 256), (0, 512)), ((100, 110), (300, 302)), box_of_shape((512, 512))]:
        found: dict[Any, np.ndarray] = {}
        reading = read_boxes(tmp_path / "state", manifest, [(0, [box])], lambda _, new, found=found: found.update(new))
        (a, b), (c, d) = box
        np.testing.assert_array_equal(found[box], x[a:b, c:d])
        rows, columns = min(b - a + 2 * 64, 512), min(d - c + 2 * 64, 512)
        assert reading.bytes <= rows * columns * 4
    assert reading.bytes == x.nbytes


@pytest.mark.parametrize("seed", range(20))
def test_chunks_cover_a_box_once(seed: int) -> None:
    from sbp_jax.checkpoint.layout import chunks, volume, within

    rng = np.random.default_rng(seed)
    box = tuple((a, a + int(n)) for a, n in zip(range(3), rng.integers(0, 40, rng.integers(0, 4)), strict=False))
    limit, count = int(rng.integers(1, 3000)), np.zeros([b - a for a, b in box], int)
    for chunk in chunks(box, 4, limit):
        assert volume(chunk) * 4 <= max(limit, 4)
        count[within(chunk, box)] += 1
    assert np.all(count == 1)
