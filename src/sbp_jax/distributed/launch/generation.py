"""One generation: its processes from their start to the last one's end."""

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...run_dir import (
    EXIT_STOPPED,
    STACKS_SIGNAL,
    STEPPING,
    Heartbeat,
    begin_generation,
    heartbeat_path,
    open_file,
    read_modules,
    read_report,
)
from .logs import Files, Relay, Tail, last_lines, redact
from .options import Options
from .signals import PASSED_ON, Signals
from .spares import Spares
from .watch import Failure, WakingClock, hung, left_too_early
from .worker import Worker, exit_code, signal_name

_LOOK_SECONDS = 0.1
_DRAIN_SECONDS = 1.0
_KILL_SECONDS = 30.0
_STACKS_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a generation ended."""

    code: int
    """Of the first that failed; 0 if all ended well; ``EXIT_STOPPED`` if they left by agreement."""
    failure: Failure | None = None
    progressed: bool = False
    """Whether a step was begun."""
    asked: int | None = None
    """The signal that asked the launcher to stop."""


class Generation:
    """The processes of one start. ``run`` returns when all of them have ended, whatever happens."""

    def __init__(
        self, number: int, slots: Sequence[int], port: int, options: Options, run_dir: Path, spares: Spares,
        signals: Signals, environment: Mapping[str, str], secrets: tuple[bytes, ...], say: Callable[..., None],
    ) -> None:  # fmt: skip
        self.number, self.options, self.run_dir, self.spares, self.signals = number, options, run_dir, spares, signals
        self.secrets, self.say = secrets, say
        self.clock = WakingClock()
        self.workers: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(signals.reading, selectors.EVENT_READ)
        self.relays: list[Relay] = []
        self.outputs: dict[int, Tail | Files] = {}
        self.asked: int | None = None
        self.stop_by: float | None = None
        self.growing = False
        self.begun_at = self.clock()
        begin_generation(run_dir, number)
        try:
            for local_rank, slot in enumerate(slots):
                self._start(local_rank, slot, len(slots), port, environment)
        except BaseException:
            self._end()
            raise

    def run(self) -> Outcome:
        """Watch until all have ended."""
        failure: Failure | None = None
        try:
            while failure is None and any(worker.runs for worker in self.workers):
                self._wait(_LOOK_SECONDS)
                failure = self._first_failure()
                self._prepare_spares()
            code = self._code(failure)
        finally:
            self._end()
        progressed = any(worker.beat.step is not None for worker in self.workers)
        if failure is not None:
            self._show(failure)
        self._close()
        return Outcome(code, failure, progressed, self.asked)

    def _start(self, local_rank: int, slot: int, size: int, port: int, environment: Mapping[str, str]) -> None:
        options = self.options
        rank = options.node_rank * size + local_rank
        fd = open_file(heartbeat_path(self.run_dir, self.number, rank), os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, Heartbeat().record(), 0)
        outputs = self._outputs(local_rank, rank)
        child = self.spares.take()
        self.workers.append(Worker(rank, local_rank, slot, child, fd, changed_at=self.clock()))
        host = f"[{options.bind}]" if ":" in options.bind else options.bind
        variables = {
            **environment,
            "MASTER_ADDR": options.master_addr,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(options.nnodes * size),
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(size),
            "NODE_RANK": str(options.node_rank),
            "NNODES": str(options.nnodes),
            "SBP_GENERATION": str(self.number),
            "SBP_RUN_DIR": str(self.run_dir),
            "JAX_COORDINATOR_BIND_ADDRESS": f"{host}:{port}",
        }
        if options.nproc_per_node > 1:  # A process alone on its node has all devices.
            variables["SBP_LOCAL_SLOT"] = str(slot)
        kind = "program" if options.no_python else "module" if options.module else "script"
        try:
            child.tell(kind, options.command, variables, outputs)
        except OSError:
            pass  # It has ended already, and is seen so in the first look.
        for relay in self.relays[-2:]:
            relay.close_writing()

    def _outputs(self, local_rank: int, rank: int) -> tuple[int, ...]:
        """Descriptors for a process's standard output and standard error."""
        options = self.options
        if options.redirect:
            assert options.logdir is not None
            files = self.outputs[rank] = Files(options.logdir, local_rank, self.number)
            if self.number == 0:
                self.say(f"rank {rank} writes to {files.paths[0]} and {files.paths[1].name}")
            return files.fds
        tail = self.outputs[rank] = Tail()
        prefix = f"[{rank}] ".encode() if options.label else b""
        relays = [Relay(out, prefix, self.secrets, tail) for out in (sys.stdout.buffer, sys.stderr.buffer)]
        self.relays += relays
        for relay in relays:
            self.selector.register(relay.reading, selectors.EVENT_READ, relay)
        return tuple(relay.writing for relay in relays)

    def _wait(self, seconds: float) -> None:
        """Pass on output and signals until something happens, at most ``seconds``; then look at every process."""
        for key, _ in self.selector.select(seconds):
            if key.data is not None and not key.data.pump():
                self.selector.unregister(key.fd)
        for number in self.signals.take():
            self._signal(number)
        now = self.clock()
        for worker in self.workers:
            worker.look(now)

    def _signal(self, number: int) -> None:
        if number in PASSED_ON:
            self._pass_on(number)
        elif self.asked is None or self.growing:
            self.growing = False
            self.say(f"{signal_name(number)}: passed on to {len(self.workers)} processes; they have "
                     f"{self.options.stop_timeout_seconds:g} s to save and leave")  # fmt: skip
            self.ask_to_stop(number)
        else:
            self.say(f"{signal_name(number)} again: the processes are killed")
            self.stop_by = self.clock()

    def ask_to_stop(self, number: int) -> None:
        """Every process gets the signal; those that agree on a step save and leave there."""
        self.asked = number
        self.stop_by = self.clock() + self.options.stop_timeout_seconds
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for worker in self.workers:
            # A shell waits for its child before it acts on a signal, so the child must get it too.
            worker.signal(number, group=self.options.no_python)

    def _first_failure(self) -> Failure | None:
        now, options = self.clock(), self.options
        expected = {None, 0, EXIT_STOPPED} | ({-self.asked, 128 + self.asked} if self.asked else set())
        bad = [w for w in self.workers if w.code not in expected]
        if bad:
            # Several at once: one that was killed, then the one that raised first, made the others fail.
            first = min(bad, key=lambda w: (self._raised_at(w), w.rank))
            return Failure(first, exit_code(first.code or 0), first.ending() + first.where())
        if self.stop_by is not None:
            if any(w.code not in (None, 0, EXIT_STOPPED) for w in self.workers):  # The others wait for it in vain.
                self.stop_by = min(self.stop_by, now + options.grace_seconds)
            if now < self.stop_by:
                return None
            late = next((w for w in self.workers if w.runs), None)
            if late is None:
                return None
            return Failure(
                late,
                128 + (self.asked or signal.SIGTERM),
                f"has not left within {options.stop_timeout_seconds:g} s of {signal_name(self.asked or 15)}",
            )
        if self._may_grow(now):
            self.say(f"asking {len(self.workers)} processes to stop at a common step, to start all "
                     f"{options.nproc_per_node} again")  # fmt: skip
            self.growing = True
            self.ask_to_stop(signal.SIGTERM)
        # First: those that wait for one that has left are silent because of it.
        alone = min(options.exit_timeout_seconds, options.heartbeat_timeout_seconds)
        early = left_too_early(self.workers, now, alone)
        if early is not None:
            return early
        failure = hung(self.workers, now, options.heartbeat_timeout_seconds)
        if failure is not None:
            self._dump_stacks()
        return failure

    def _dump_stacks(self) -> None:
        """Where the processes are: of those that hang, one does not wait for the others."""
        for worker in self.workers:
            if worker.runs and worker.beat.count:
                worker.signal(STACKS_SIGNAL)
        end = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < end:
            self._wait(0.05)

    def _may_grow(self, now: float) -> bool:
        """Whether a smaller run has worked for long enough, and can be stopped because all are in their steps."""
        after, size = self.options.grow_after_seconds, len(self.workers)
        if after is None or size == self.options.nproc_per_node or now - self.begun_at < after:
            return False
        return all(worker.runs and worker.beat.phase == STEPPING for worker in self.workers)

    def _raised_at(self, worker: Worker) -> float:
        report = read_report(self.run_dir, self.number, worker.rank)
        return 0.0 if report is None else report.unix_seconds

    def _code(self, failure: Failure | None) -> int:
        if failure is not None:
            return failure.code
        codes = {worker.code for worker in self.workers}
        if codes - {0, EXIT_STOPPED}:  # Ended by the signal that we passed on.
            return 128 + (self.asked or signal.SIGTERM)
        return EXIT_STOPPED if EXIT_STOPPED in codes else 0

    def _prepare_spares(self) -> None:
        """Once all have begun steps: before, spares would take processor time from their start."""
        if self.spares.missing and all(worker.runs and worker.beat.phase == STEPPING for worker in self.workers):
            modules = dict.fromkeys((*read_modules(self.run_dir, self.number), *self.options.preload))
            if modules:  # Without imports to wait for, a new process is as quick.
                self.spares.prepare(modules)

    def _end(self) -> None:
        """End what still runs: told and TERM, a while, then KILL for every group."""
        running = [worker for worker in self.workers if worker.runs]
        for worker in running:
            worker.say_end()
        for worker in running:
            worker.signal(signal.SIGTERM, group=True)
            worker.signal(signal.SIGCONT, group=True)
        # After a signal of ours they have had their time.
        end = time.monotonic() + (
            0.0 if self.stop_by is not None and self.clock() >= self.stop_by else self.options.grace_seconds
        )
        while any(worker.runs for worker in self.workers) and time.monotonic() < end:
            self._wait(0.02)
        for worker in self.workers:
            # Groups of processes that have ended, too: their children may be there.
            worker.signal(signal.SIGKILL, group=True)
        end = time.monotonic() + _KILL_SECONDS
        while any(worker.runs for worker in self.workers) and time.monotonic() < end:
            self._wait(0.02)
        for worker in self.workers:
            if worker.runs:
                self.say(f"rank {worker.rank} (process {worker.pid}) cannot be killed: it waits inside the kernel, "
                         "for a disk or a device; it is left behind")  # fmt: skip
        end = time.monotonic() + _DRAIN_SECONDS
        while len(self.selector.get_map()) > 1 and time.monotonic() < end:
            self._wait(0.02)

    def _show(self, failure: Failure) -> None:
        """What happened, to whom, and the end of what it printed."""
        worker = failure.worker
        self.say(f"rank {worker.rank} (process {worker.pid}) {failure.reason}; all {len(self.workers)} processes here "
                 "are ended")  # fmt: skip
        if self.options.nnodes > 1:
            self.say("a process of another node may have failed first: see what its launcher says")
        report = read_report(self.run_dir, self.number, worker.rank)
        if report is not None:
            first = (report.message.splitlines() or [""])[0]
            self.say(
                redact(f"rank {worker.rank} raised {report.type}: {first}".encode(), self.secrets).decode(
                    "utf-8", "replace"
                )
            )
        output = self.outputs[worker.rank]
        end, where = (
            (output.text(), "") if isinstance(output, Tail) else (output.tail(), f" ({output.paths[0].parent})")
        )
        text = last_lines(redact(end, self.secrets))
        if text:
            self.say(f"the end of rank {worker.rank}'s output{where}:")
            self.say("\n".join(f"  | {line}" for line in text.splitlines()), name=False)

    def _close(self) -> None:
        for worker in self.workers:
            worker.reap()
        for relay in self.relays:
            relay.flush()
            relay.close()
        for output in self.outputs.values():
            if isinstance(output, Files):
                output.close()
        self.selector.close()
