"""All processes stop before the same step, whenever and whoever is asked: four of them, as threads around one store."""

import os
import random
import signal
import threading
import time

import pytest

import sbp_jax as sbp
from sbp_jax.processes import stopping
from sbp_jax.processes.store import Store, _Single

SIZE = 4


def stops(ask_after: float, asking: tuple[int, ...], in_step: bool, ahead: int = 0) -> list[int]:
    """The step before which each of four processes stops. ``in_step``: each step waits for all, as a collective does;
    ``ahead``: how many steps process 0 may be ahead, as with steps that are only begun."""
    client = _Single()
    stopping_of = [stopping._Stopping(Store(rank, SIZE, client)) for rank in range(SIZE)]
    done = [0] * SIZE
    found: list[int] = [-1] * SIZE

    def run(rank: int) -> None:
        chance = random.Random(rank)
        for step in range(100_000):
            if stopping_of[rank].reached(step):
                found[rank] = step
                return
            done[rank] = step
            while in_step and min(done) < step - (ahead if rank == 0 else 0):
                if any(0 <= other <= step for other in found):  # One has stopped, and will not come to this step.
                    return
                time.sleep(0.0002)
            time.sleep(chance.uniform(0, 0.002))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    time.sleep(ask_after)
    for rank in asking:
        stopping_of[rank].ask()
    for thread in threads:
        thread.join(30)
    for one in stopping_of:
        one.close()
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_LISTEN_SECONDS", 0.01)


@pytest.mark.parametrize("asking", [(0,), (3,), (1, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("in_step", [False, True], ids=["free", "in step"])
def test_all_stop_before_one_step(asking: tuple[int, ...], in_step: bool) -> None:
    for seed in range(3):
        found = stops(random.Random(seed).uniform(0.0, 0.15), asking, in_step)
        assert len(set(found)) == 1 and found[0] >= 0, found


def test_one_that_is_ahead_decides() -> None:
    found = stops(0.1, (2,), in_step=True, ahead=5)
    assert len(set(found)) == 1 and found[0] >= 0, found


def test_a_missing_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "AGREE_SECONDS", 0.3)
    client = _Single()
    three = [stopping._Stopping(Store(rank, SIZE, client)) for rank in (0, 1, 2)]
    assert not three[0].reached(5)
    three[1].ask()
    for one in three:
        with pytest.raises(sbp.ProcessError, match="rank 3 has not come within"):
            for step in range(6, 1000):
                one.reached(step)
                time.sleep(0.01)
        one.close()


def test_a_process_of_its_own_stops_after_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_stopping", [])
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert not sbp.distributed.should_stop(0)
        os.kill(os.getpid(), signal.SIGTERM)
        step, end = 1, time.monotonic() + 20
        while not sbp.distributed.should_stop(step) and time.monotonic() < end:
            step += 1
            time.sleep(0.01)
        assert time.monotonic() < end and step > 1
        with pytest.raises(SystemExit) as stop:
            sbp.distributed.leave()
        assert stop.value.code == sbp.distributed.EXIT_STOPPED == 75
    finally:
        signal.signal(signal.SIGTERM, before)
        for one in stopping._stopping:
            one.close()


@pytest.mark.parametrize("step", [1.5, "1", None])
def test_steps_are_whole_numbers(step: object) -> None:
    with pytest.raises(TypeError):
        sbp.distributed.should_stop(step)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sbp.distributed.heartbeat(step)  # type: ignore[arg-type]
