"""What processes say to each other before JAX connects them, tried with threads: no JAX is needed for it."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sbp_jax.errors import ProcessError
from sbp_jax.processes.meeting import Hello, gather, join, place
from world import free_port


def together(*hellos: Hello, seconds: float = 20.0, late: float = 0.0) -> list[str]:
    """What each process ends with: ``ok``, or its error. Rank 0 is the first; the last comes so many seconds late."""
    port, ready = free_port(), threading.Event()

    def one(number: int) -> str:
        try:
            if number == 0:
                ready.set()
                gather(f"127.0.0.1:{port}", hellos[0], seconds)
                started.append(socket.create_server(("127.0.0.1", port)))  # as JAX's service then does
            else:
                ready.wait()
                time.sleep(late if number == len(hellos) - 1 else 0)
                join(f"127.0.0.1:{port}", hellos[number], seconds)
        except ProcessError as error:
            return str(error)
        return "ok"

    started: list[socket.socket] = []
    with ThreadPoolExecutor(len(hellos)) as threads:
        found = list(threads.map(one, range(len(hellos))))
    for service in started:
        service.close()
    return found


def hello(rank: int, size: int, generation: int = 0) -> Hello:
    return Hello(rank, size, generation, "0.10.2")


def test_processes_that_agree_meet() -> None:
    assert together(*(hello(rank, 4) for rank in range(4))) == ["ok"] * 4


def test_another_number_of_processes_is_an_error_everywhere() -> None:
    found = together(hello(0, 2), hello(1, 4), hello(2, 4), hello(3, 4))
    for text in found:
        assert "the processes disagree on their number" in text and "was told 4, rank 0 was told 2" in text


def test_one_rank_twice_is_an_error_everywhere() -> None:
    found = together(hello(0, 3), hello(1, 3), hello(1, 3))
    assert all("two processes came as rank 1" in text for text in found)


def test_who_does_not_come_is_named_everywhere() -> None:
    found = together(hello(0, 4), hello(2, 4), seconds=1.0)
    assert all("ranks 1, 3 of 4 have not come to the coordinator within 1 s" in text for text in found)


def test_other_versions_of_jax_are_an_error_everywhere() -> None:
    found = together(hello(0, 2), Hello(1, 2, 0, "0.12.0"))
    assert all("rank 1 0.12.0, rank 0 0.10.2" in text for text in found)


def test_an_older_generation_may_not_join_and_stops_nobody() -> None:
    found = together(hello(0, 2, generation=3), hello(1, 2, generation=2), hello(1, 2, generation=3), late=1)
    assert found[0] == found[2] == "ok"
    assert "is of generation 2" in found[1] and "generation 3 runs" in found[1]


def test_a_coordinator_that_is_not_there_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    begin = time.monotonic()
    with pytest.raises(ProcessError, match=rf"could not reach the coordinator at {address} within 0.5 s") as raised:
        join(address, hello(1, 2), 0.5)
    assert time.monotonic() - begin < 5
    assert "MASTER_ADDR" in str(raised.value) and "firewall" in str(raised.value)


def test_a_stranger_on_the_port_is_not_taken_for_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        with pytest.raises(ProcessError, match=f"could not reach the coordinator at {address}"):
            join(address, hello(1, 2), 0.5)


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ProcessError, match=f"rank 0 cannot listen on {address}: the port is taken"):
            gather(address, hello(0, 2), 1.0)


def test_strangers_do_not_disturb_the_meeting() -> None:
    port = free_port()

    def strange() -> None:
        time.sleep(0.2)
        for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"rank": -1}\n', b'["rank"]\n', b""):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(words)

    stranger = threading.Thread(target=strange)
    stranger.start()
    with pytest.raises(ProcessError, match="rank 1 of 2 has not come"):
        gather(f"127.0.0.1:{port}", hello(0, 2), 1.0)
    stranger.join()


@pytest.mark.parametrize("address", ["localhost", "host:", ":29500", "host:port", "host:0", "host:70000"])
def test_an_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(ProcessError, match="must be host:port"):
        join(address, hello(1, 2), 0.5)


def test_places_are_counted_by_machine() -> None:
    machines = ["a", "b", "a", "b", "c"]
    found = [place("", rank, machines) for rank in range(5)]
    assert [(one.local_rank, one.local_size) for one in found] == [(0, 2), (0, 2), (1, 2), (1, 2), (0, 1)]
    assert [(one.node_rank, one.nodes) for one in found] == [(0, 3), (1, 3), (0, 3), (1, 3), (2, 3)]
