"""What the report on a compiled step counts, dtype by dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp


@pytest.mark.parametrize(("dtype", "widened"), [("float32", 0), ("bfloat16", 1), ("float16", 0), ("int8", 0)])
@pytest.mark.parametrize("way", [("S(0)", "B"), ("S(0)", "S(1)")], ids=str)
def test_bytes_are_the_plans_but_for_the_cpus_widening(way: tuple[str, str], dtype: str, widened: int) -> None:
    where = sbp.placement("cpu", np.arange(4), axis_names=("a",))
    src, dst = way
    step = sbp.auto_parallel(lambda x: x + x, placement=where, in_sbp=(src,), out_sbp=dst)
    x = jax.ShapeDtypeStruct((16, 8), jnp.dtype(dtype))
    report = step.plan(x).verify(step.lower(x).compile())
    assert report.exact and len(report.matched) == 1
    assert report.widened_bytes == widened * report.expected_bytes
    assert report.found_bytes - report.widened_bytes == report.expected_bytes > 0
    assert ("widening" in str(report)) == bool(widened)
