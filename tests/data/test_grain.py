"""Grain's datasets, iterators and loaders as sources."""

import json
from typing import Any

import numpy as np
import pytest

import sbp_jax as sbp

grain = pytest.importorskip("grain")


def place(n: int) -> sbp.Placement:
    return sbp.placement("cpu", ranks=range(n), axis_names="dp")


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


def values(batches: Any) -> list[list[int]]:
    return [np.asarray(b["x"]).tolist() for b in batches]


def dataset(n: int = 24) -> Any:
    return grain.MapDataset.source(list(range(n))).map(lambda i: {"x": i})


def test_a_map_dataset_is_read_by_index() -> None:
    pipe = sbp.data.pipeline(dataset(), placement=place(4), sbp="S(0)", batch=8, seed=1)
    found = values(pipe)
    assert len(found) == 3 and sorted(flat(found)) == list(range(24)) and found[0] != list(range(8))


def test_a_datasets_own_shuffle_is_another_in_each_epoch() -> None:
    found = values(sbp.data.pipeline(dataset(8).shuffle(seed=3), placement=place(4), sbp="S(0)", batch=8, epochs=2))
    assert sorted(found[0]) == sorted(found[1]) == list(range(8)) and found[0] != found[1]


def iterable() -> Any:
    return dataset().shuffle(seed=3).filter(lambda e: e["x"] % 3 != 0).to_iter_dataset()


def loader() -> Any:
    class Double(grain.transforms.Map):
        def map(self, element: int) -> dict[str, int]:
            return {"x": 2 * element}

    sampler = grain.samplers.IndexSampler(24, num_epochs=1, seed=0, shuffle=True)
    return grain.DataLoader(data_source=list(range(24)), sampler=sampler, operations=[Double()], worker_count=0)


@pytest.mark.parametrize("make", [iterable, loader, lambda: iter(iterable())])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_iterables_go_to_their_own_state(make: Any, at: int) -> None:
    def pipe(devices: int) -> Any:
        return sbp.data.pipeline(make(), placement=place(devices), sbp="S(0)", batch=4)

    whole = values(pipe(4))
    assert len(whole) >= 4
    first = pipe(4)
    for _ in range(at):
        next(first)
    state = json.loads(json.dumps(first.state()))
    assert at == 0 or state["source"]
    second = pipe(2)
    next(second)
    second.restore(state)
    assert values(second) == whole[at:]
    first.close()


def test_several_epochs_of_an_iterable() -> None:
    found = values(sbp.data.pipeline(iterable(), placement=place(4), sbp="S(0)", batch=8, epochs=2))
    assert len(found) == 4 and found[:2] == found[2:]


def test_a_filtered_map_dataset_is_refused_with_the_way_out() -> None:
    pipe = sbp.data.pipeline(dataset().filter(lambda e: e["x"] > 4), placement=place(4), sbp="S(0)", batch=8)
    with pytest.raises(sbp.DataError, match=r"example 0 is None.*to_iter_dataset\(\)"):
        next(pipe)


def test_an_endless_dataset_is_refused() -> None:
    with pytest.raises(sbp.DataError, match=r"leave \.repeat\(\) out, and pass epochs=None"):
        sbp.data.pipeline(dataset().repeat(), placement=place(4), sbp="S(0)", batch=8)
