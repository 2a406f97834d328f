"""Ops on one device: the roofline, and matrix products by size."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_jax import cluster
from sbp_jax.cluster import Cluster, Level, device


def test_an_op_takes_the_longer_of_arithmetic_and_traffic() -> None:
    c = cluster.get("a100-80")
    assert c.op_seconds(1e15, 1.0, "bfloat16") == pytest.approx(1e15 / (312e12 * 0.85))
    assert c.op_seconds(1.0, 1e12, "bfloat16") == pytest.approx(1e12 / (2.039e12 * 0.88 * 0.82))
    assert c.op_seconds(0.0, 1e12, "bfloat16") == pytest.approx(1e12 / (2.039e12 * 0.88)), "a copy"
    assert c.op_seconds(1.0, 1.0, "bfloat16") == c.op_seconds_floor > 0
    assert c.op_seconds(1.0, 1.0, "bfloat16", is_kernel=False) < c.op_seconds_floor
    assert math.isclose(c.copy_seconds(1e12), 2e12 / (2.039e12 * 0.88))


def test_a_product_by_hand() -> None:
    """Ten units, tiles of 10 x 10 in steps of 5, 1,000 operations a second each, 3 s to fill a wave."""
    chip = device("x", {"float32": 1e4}, 1e9, 1e9, units=10, tiles=((10, 10, 5),), fill_seconds=3.0)
    c = Cluster("x", chip, (Level("node", None, 1.0, 0.0),))
    wave = 2 * 10 * 10 * 5 / 1e3 + 3.0
    assert c.matmul_seconds(100, 10, 5, "float32", 4) == pytest.approx(wave), "ten tiles: one full wave"
    assert c.matmul_seconds(101, 10, 5, "float32", 4) == pytest.approx(2 * wave), "an eleventh tile: a second wave"
    assert c.matmul_seconds(91, 10, 3, "float32", 4) == pytest.approx(wave), (
        "what a tile lacks is computed all the same"
    )
    assert c.matmul_seconds(10, 10, 5, "float32", 4, batch=11) == pytest.approx(2 * wave), "a batch is more tiles"
    # One tile of a long k: eight units take 10 of its 80 each, 2 s, and memory adds the pieces, hardly any time.
    assert c.matmul_seconds(10, 10, 80, "float32", 4) == pytest.approx(2.0 + 3.0, rel=1e-3)


def test_results_are_stored_between_tiles_or_meanwhile() -> None:
    for stores_between, stored in ((0, 0.0), (1, 100 * 10 * 4 / 1e3)):
        chip = device("x", {"float32": 1e4}, 1e9, 1e3, units=10, tiles=((10, 10, 5),), stores_between=stores_between)
        c = Cluster("x", chip, (Level("node", None, 1.0, 0.0),))
        arithmetic = 2 * 10 * 10 * 500 / 1e3
        assert c.matmul_seconds(100, 10, 500, "float32", 4, moved_bytes=0.0) == pytest.approx(arithmetic + stored)


def test_a_product_is_no_faster_than_its_cache_and_its_memory() -> None:
    tiles = ((10, 10, 5),)
    slow = device("x", {"float32": 1e4}, 1e9, 1e9, units=10, tiles=tiles, cache_bytes_per_second=100.0)
    c = Cluster("x", slow, (Level("node", None, 1.0, 0.0),))
    assert c.matmul_seconds(100, 10, 5, "float32", 4) == pytest.approx((10 + 10) * 5 * 4 * 10 / 100.0)
    c = cluster.get("a100-80")
    vector = c.matmul_seconds(1, 8192, 8192, "bfloat16", 2)
    assert vector == pytest.approx(8192 * 8192 * 2 / (2.039e12 * 0.88), rel=1e-2)
    assert c.matmul_seconds(64, 64, 64, "bfloat16", 2) == c.op_seconds_floor


GPUS = [n for n in cluster.presets() if n not in ("cpu", "tpu-v5p")]


@pytest.mark.parametrize("name", GPUS)
def test_larger_products_are_more_efficient(name: str) -> None:
    c = cluster.get(name)
    found = [c.matmul_efficiency_of(s, s, s, "bfloat16", 2) for s in (64, 256, 1024, 4096, 16384)]
    assert found == sorted(found)
    assert 0.93 * c.matmul_efficiency < found[-1] <= c.matmul_efficiency


@given(
    name=st.sampled_from(cluster.presets()),
    sizes=st.tuples(*[st.integers(1, 20_000)] * 3),
    batch=st.integers(1, 64),
    dtype=st.sampled_from(["bfloat16", "float32"]),
)
def test_efficiency_is_a_part(name: str, sizes: tuple[int, int, int], batch: int, dtype: str) -> None:
    c = cluster.get(name)
    m, n, k = sizes
    assert 0 < c.matmul_efficiency_of(m, n, k, dtype, 2, batch) <= c.matmul_efficiency * (1 + 1e-9)
    assert c.matmul_seconds(m, n, k, dtype, 2, batch) <= c.matmul_seconds(2 * m, n, k, dtype, 2, batch) * (1 + 1e-9)


# Rows, columns, depth, batch and TFLOP/s measured on A100s in half precision: by EleutherAI ("cookbook", benchmarks/
# sizing/sample_results), by H. He (8192, random values), by S. Bekman (the best of all shapes tried).
MEASURED = (
    (8192, 12288, 4096, 1, 241.6), (8192, 4096, 4096, 1, 234.9), (8192, 16384, 4096, 1, 241.1),
    (8192, 4096, 16384, 1, 252.8), (8192, 51200, 4096, 1, 255.4), (2048, 2048, 256, 64, 130.2),
    (2048, 256, 2048, 64, 219.0), (1024, 1024, 1024, 128, 227.3), (1024, 1024, 2048, 128, 243.3),
    (8192, 8192, 8192, 1, 257.0), (1024, 5120, 10240, 1, 271.2),
)  # fmt: skip


def test_measured_products() -> None:
    """Sources in ``presets``. Attention's scores, of k = 256, are as slow as measured."""
    c = cluster.get("a100-40")
    errors = [c.matmul_efficiency_of(m, n, k, "bfloat16", 2, b) * 312 / rate - 1 for m, n, k, b, rate in MEASURED]
    assert max(map(abs, errors)) < 0.08
    assert sum(map(abs, errors)) / len(errors) < 0.05
    assert abs(sum(errors)) / len(errors) < 0.02, "neither fast nor slow on the whole"


def test_published_figures_of_large_products() -> None:
    """The shape of the table that the sustained rate is from: nothing is lost to tiles that the table has not."""
    assert cluster.get("h100").matmul_efficiency_of(2048, 2048, 13312, "bfloat16", 2) == pytest.approx(0.80, abs=0.05)
