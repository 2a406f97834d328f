"""Before JAX connects its processes: all of them meet at the coordinator's address and compare what they were told.

JAX's own start ends the whole process, from C++, when somebody does not come or comes with another number of processes.
Here each gets a Python error that says who and what. Rank 0 listens, the others connect and say who they are in a line
of JSON; when all have come and agree, rank 0 lets go of the port and JAX's coordination service takes it.
"""

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import ProcessError

_GREETING = b"sbp_jax meeting 1\n"
_MOST_BYTES = 4096  # of a line: more is not ours
_LINGER_SECONDS = 10.0  # after a disagreement, for those still to come
_RETRY_SECONDS = 0.05
# What to look at, where nobody answers.
_CHECK = (
    "Check that rank 0 runs and has the same address (MASTER_ADDR, MASTER_PORT, or coordinator_address=), that the "
    "host can be reached from here, that no firewall closes the port, and that rank 0 listens on that interface (bind=)"
)


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a process is, as it was told."""

    rank: int
    size: int
    generation: int
    jax: str
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs, found when all have met.

    ``here``: the address of its machine by which it reached the coordinator. The rest counts by machines.
    """

    here: str
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int


def place(here: str, rank: int, machines: Sequence[str]) -> Place:
    """The place of a rank, given the machine of every rank. Machines are numbered by their first rank."""
    order = list(dict.fromkeys(machines))
    mine = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    return Place(here, mine.index(rank), len(mine), order.index(machines[rank]), len(order))


def machine() -> str:
    """A name of this machine that no other has: host names may be the same, and a boot's id is not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()[:200]} {boot[:64]}"


def host_and_port(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` in its parts."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ProcessError(f"the coordinator's address is {address!r}: it must be host:port, as in 10.0.0.1:29500")
    return host.strip("[]"), int(port)


def gather(bind: str, hello: Hello, seconds: float) -> Place:
    """Rank 0's part: wait for all others at ``bind``, compare, tell all of them the outcome and their places.

    Raises ``ProcessError`` if the port is taken, somebody does not come within the limit, or two do not agree.
    """
    listener = _listen(bind)
    with listener, selectors.DefaultSelector() as waiting:
        host = _Host(listener, waiting, hello)
        here = listener.getsockname()[0]
        verdict = host.collect(time.monotonic() + seconds, seconds)
        if verdict:
            host.linger(verdict, time.monotonic() + min(_LINGER_SECONDS, seconds))
    host.tell(verdict)  # The port is free again: whoever hears of success may look for JAX's service there.
    host.close()
    if verdict:
        raise ProcessError(verdict)
    return place(host.here or here, 0, host.machines())


def join(address: str, hello: Hello, seconds: float) -> Place:
    """The others' part: say who we are at ``address``, wait for the outcome, then for JAX's service to listen there.

    Raises ``ProcessError`` if nobody answers within the limit, or with the outcome where it is one.
    """
    end = time.monotonic() + seconds
    reason = "nothing listens there"
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise ProcessError(
                f"rank {hello.rank} could not reach the coordinator at {address} within {seconds:g} s: {reason}. "
                + _CHECK
            )
        try:
            with _connect(address, min(left, 10.0)) as connection:
                if _line(connection, min(left, 10.0)) + b"\n" != _GREETING:
                    reason = "what listens there is not rank 0 of such a run: the port may be another program's"
                else:
                    here = connection.getsockname()[0]
                    _send(connection, asdict(hello))
                    # Rank 0 says at its own limit who is missing: leave it time to.
                    found = _hear(_line(connection, left + _LINGER_SECONDS), address, hello, here)
                    break
        except TimeoutError:
            reason = "no answer"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(_RETRY_SECONDS, max(0.0, end - time.monotonic())))
    _await_port(address, hello, end)
    return found


class _Host:
    """Rank 0 while the others come."""

    def __init__(self, listener: socket.socket, waiting: selectors.BaseSelector, hello: Hello) -> None:
        self.listener, self.waiting, self.hello = listener, waiting, hello
        self.came: dict[int, Hello] = {0: hello}
        self.connections: dict[socket.socket, Hello] = {}
        self.here = ""
        self.most = hello.size  # processes that may come, by what any of them was told
        self.read: dict[socket.socket, bytes] = {}
        listener.setblocking(False)
        waiting.register(listener, selectors.EVENT_READ)

    def collect(self, end: float, seconds: float) -> str:
        """Until all are there: an empty text, or what is wrong."""
        while len(self.came) < self.hello.size:
            left = end - time.monotonic()
            if left <= 0:
                missing = [rank for rank in range(self.hello.size) if rank not in self.came]
                return _absent(missing, self.hello.size, seconds)
            for come in self.next(left):
                wrong = self.compare(come)
                if wrong:
                    return wrong
                self.came[come.rank] = come
        return ""

    def compare(self, come: Hello) -> str:
        """What is wrong with a process that has come; empty if nothing is."""
        mine = self.hello
        if come.size != mine.size:
            return (
                f"the processes disagree on their number: rank {come.rank} was told {come.size}, rank 0 was told "
                f"{mine.size} (WORLD_SIZE, or num_processes=). All must be told the same"
            )
        if come.rank in self.came:
            return (
                f"two processes came as rank {come.rank} (RANK, or process_id=): each of the {mine.size} processes "
                f"must have a rank of its own, from 0 to {mine.size - 1}"
            )
        if come.jax != mine.jax:
            return f"the processes run different versions of JAX: rank {come.rank} {come.jax}, rank 0 {mine.jax}"
        return ""

    def next(self, seconds: float) -> list[Hello]:
        """Who has said who it is by now, waited for once."""
        found = []
        for key, _ in self.waiting.select(seconds):
            if key.fileobj is self.listener:
                self.accept()
                continue
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            come = self.receive(connection)
            if come is not None:
                found.append(come)
        return found

    def accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            connection.send(_GREETING)
        except OSError:
            return
        self.read[connection] = b""
        self.waiting.register(connection, selectors.EVENT_READ)

    def receive(self, connection: socket.socket) -> Hello | None:
        """What has come on a connection; None while the line is not whole, or if it is none of ours."""
        try:
            part = connection.recv(_MOST_BYTES)
        except OSError:
            part = b""
        line = self.read[connection] = self.read[connection] + part
        if part and b"\n" not in line and len(line) < _MOST_BYTES:
            return None
        self.waiting.unregister(connection)
        come = _hello(line)
        if come is None:  # A stranger, or one that left: it is not counted.
            connection.close()
            return None
        if come.generation != self.hello.generation:
            # Not an error for us: a process that an earlier start of this run has left behind.
            _send(
                connection,
                {
                    "verdict": f"rank {come.rank} is of generation {come.generation} of this run, and generation "
                    f"{self.hello.generation} runs at this address: it may not join, and should end"
                },
            )
            connection.close()
            return None
        self.connections[connection] = come
        self.most = min(max(self.most, come.size), 4096)
        # Of several interfaces, one that other machines reach, if any came from another machine.
        here = connection.getsockname()[0]
        self.here = here if not self.here or self.here.startswith("127.") else self.here
        return come

    def linger(self, verdict: str, end: float) -> None:
        """Tell the outcome to those that have come, and wait a little for those still to come, so that they hear it."""
        while len(self.connections) < self.most - 1 and time.monotonic() < end:
            self.tell(verdict)
            self.next(max(0.0, min(0.2, end - time.monotonic())))

    def tell(self, verdict: str) -> None:
        machines = [] if verdict else self.machines()
        for connection, come in self.connections.items():
            if connection.fileno() >= 0:
                found = {} if verdict else {"place": asdict(place("", come.rank, machines))}
                _send(connection, {"verdict": verdict, **found})
                connection.close()

    def machines(self) -> list[str]:
        """By rank."""
        return [self.came[rank].machine for rank in range(self.hello.size)]

    def close(self) -> None:
        """Hang up on those that have not said who they are."""
        for connection in self.read:
            connection.close()


def _absent(missing: list[int], size: int, seconds: float) -> str:
    one = len(missing) == 1
    ranks = f"rank{'' if one else 's'} {', '.join(map(str, missing))} of {size} {'has' if one else 'have'}"
    return f"{ranks} not come to the coordinator within {seconds:g} s: see whether they run, and what they printed"


def _listen(bind: str) -> socket.socket:
    host, port = host_and_port(bind)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place[:2], family=family, backlog=1024)
    except OSError as error:
        if error.errno == 98 or "in use" in str(error):
            raise ProcessError(
                f"rank 0 cannot listen on {bind}: the port is taken. Choose another (MASTER_PORT, or "
                "coordinator_address=) for all processes, or end the program that has it"
            ) from error
        raise ProcessError(
            f"rank 0 cannot listen on {bind}: {error.strerror or error}. Rank 0 must run on the host of the "
            "coordinator's address; bind= names the interface and port to listen on where that is another"
        ) from error


def _connect(address: str, seconds: float) -> socket.socket:
    return socket.create_connection(host_and_port(address), timeout=max(0.01, seconds))


def _send(connection: socket.socket, message: dict) -> None:
    try:
        connection.setblocking(True)
        connection.settimeout(5.0)
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:  # It has left: its own errors say why.
        pass


def _line(connection: socket.socket, seconds: float) -> bytes:
    """A line without its end; what there is if the other side ends first. Raises ``TimeoutError``."""
    end, line = time.monotonic() + seconds, b""
    while b"\n" not in line and len(line) < _MOST_BYTES:
        connection.settimeout(max(0.01, end - time.monotonic()))
        part = connection.recv(_MOST_BYTES)
        if not part:
            break
        line += part
    return line.partition(b"\n")[0]


def _hello(line: bytes) -> Hello | None:
    try:
        read = json.loads(line)
        come = Hello(read["rank"], read["size"], read["generation"], read["jax"], str(read["machine"]))
    except (ValueError, TypeError, KeyError):
        return None
    numbers = (come.rank, come.size, come.generation)
    return come if all(type(number) is int and number >= 0 for number in numbers) else None


def _hear(line: bytes, address: str, hello: Hello, here: str) -> Place:
    try:
        read = json.loads(line)
        verdict = read["verdict"]
        found = None if verdict else replace(Place(**read["place"]), here=here)
    except (ValueError, TypeError, KeyError):
        raise ProcessError(
            f"rank 0 at {address} ended before all {hello.size} processes had come: its own error says why"
        ) from None
    if found is None:
        raise ProcessError(str(verdict))
    return found


def _await_port(address: str, hello: Hello, end: float) -> None:
    """Until JAX's service listens: it starts when the meeting is over. JAX itself would look once a second."""
    while True:
        try:
            _connect(address, 1.0).close()
            return
        except OSError:
            if time.monotonic() > end + _LINGER_SECONDS:
                raise ProcessError(
                    f"rank {hello.rank}: all processes have met at {address}, but rank 0 has not started JAX's service "
                    "there: its own error says why"
                ) from None
            time.sleep(0.005)
