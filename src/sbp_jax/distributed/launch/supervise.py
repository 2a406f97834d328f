"""Generations one after another: how many processes the next one has, on which port, and when there is none."""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ...run_dir import make_folder
from . import ports
from .generation import Generation, Outcome
from .logs import secrets_of
from .options import Options, constants, is_loopback
from .signals import STOPPING, Signals
from .spares import Spares

_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(slots=True)
class Slots:
    """Which places of this node take part. A place is what a process stands for: a GPU, or some cores."""

    all: tuple[int, ...]
    least: int
    used: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.used = self.all

    def after(self, outcome: Outcome, grows: bool) -> None:
        """The places of the next generation: all again after steps have been made; otherwise without the one that
        failed, if fewer are allowed."""
        if outcome.progressed or grows:
            self.used = self.all
        elif outcome.failure is not None and len(self.used) > self.least:
            self.used = tuple(slot for slot in self.used if slot != outcome.failure.worker.slot)


def supervise(options: Options) -> int:
    """Run until a generation ends well, restarts are used up, or a signal asks to stop. Gives the exit code."""
    if not is_loopback(options.bind):
        _say(options, f"warning: process 0 listens on {options.bind}, which other machines can reach. Whoever can "
             "connect to it can take part in the run: use this in networks that you trust")  # fmt: skip
    if options.logdir is not None:
        make_folder(options.logdir, others_mode=True)
    environment = {**os.environ, **constants(options)}
    run_dir = Path(tempfile.mkdtemp(prefix="sbp-run-"))
    spares = Spares(options.spares if options.max_restarts or options.grow_after_seconds else 0, environment)
    signals = Signals()
    try:
        return _generations(options, environment, run_dir, spares, signals)
    finally:
        spares.dismiss()
        signals.close()
        shutil.rmtree(run_dir, ignore_errors=True)


def _generations(
    options: Options, environment: dict[str, str], run_dir: Path, spares: Spares, signals: Signals
) -> int:  # fmt: skip
    secrets = secrets_of(environment)
    slots = Slots(tuple(range(options.nproc_per_node)), options.min_procs)
    restarts, fruitless, number, used, grows = 0, 0, 0, frozenset[int](), False
    while True:
        port = _port(options, number, used)
        used |= {port}
        generation = Generation(
            number, slots.used, port, options, run_dir, spares, signals, environment, secrets,
            lambda text, name=True: _say(options, text, name),
        )  # fmt: skip
        outcome = generation.run()
        shutil.rmtree(run_dir / f"generation-{number}", ignore_errors=True)
        tried, grows = grows, generation.growing and outcome.code != 0
        if not grows and (outcome.failure is None or outcome.asked in STOPPING):
            return outcome.code
        # More processes than the last time were an attempt of ours: that it fails at once uses up no restart.
        if outcome.failure is not None and (outcome.progressed or not tried):
            if restarts >= options.max_restarts:
                if options.max_restarts:
                    _say(options, f"no restart is left of {options.max_restarts}")
                return outcome.code
            restarts += 1
        fruitless = 0 if outcome.progressed else fruitless + 1
        slots.after(outcome, grows)
        number += 1
        _say(options, f"starting {len(slots.used)} processes again: generation {number}"
             + (f", restart {restarts} of {options.max_restarts}" if outcome.failure else ""))  # fmt: skip
        # What fails at once will do so again: not hundreds of times a second.
        if fruitless > 1 and _pause(min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**fruitless), signals):
            return outcome.code


def _pause(seconds: float, signals: Signals) -> bool:
    """Wait; whether a signal has asked to stop meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(number in STOPPING for number in signals.take()):
            return True
        time.sleep(0.05)
    return False


def _port(options: Options, number: int, used: frozenset[int]) -> int:
    """The port of a generation. Several nodes count up from the one they were told; one node takes a free one."""
    if options.nnodes > 1:
        assert options.master_port is not None
        port = options.master_port + number
        if options.node_rank == 0:
            ports.check(options.bind, port)
        return port
    if number == 0 and options.master_port is not None:
        ports.check(options.bind, options.master_port)
        return options.master_port
    return ports.free(options.bind, used)


def _say(options: Options, text: str, name: bool = True) -> None:
    """A line of the launcher's own, on stderr."""
    node = f", node {options.node_rank}" if options.nnodes > 1 else ""
    try:
        print(f"[sbp-jax launch{node}] {text}" if name else text, file=sys.stderr, flush=True)
    except OSError:  # Nobody reads any more.
        pass
