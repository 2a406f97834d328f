"""What every command shares: registration, exit codes, errors of other people's code, outputs checked in time."""

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import shtab

from ..errors import InternalError, SbpError

# Runs a command. None is 0.
Run = Callable[[argparse.Namespace], int | None]
_COMMANDS: dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], Run]]] = {}


def command(name: str, help: str, examples: str = "") -> Callable[..., Any]:
    """Register a subcommand: a function that adds its arguments to a parser and returns what runs them."""

    def add(build: Callable[[argparse.ArgumentParser], Run]) -> Callable[[argparse.ArgumentParser], Run]:
        if name in _COMMANDS:
            raise SbpError(f"there is a command {name!r} already")
        _COMMANDS[name] = (help, examples, build)
        return build

    return add


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(
        prog="sbp-jax",
        description="SBP signatures for JAX: tools for machines and plans.",
        epilog="`sbp-jax COMMAND --help` says more of each, with examples.",
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="print the versions of sbp_jax and jax, and stop")
    shtab.add_argument_to(
        whole, "--print-completion",
        help="print what completes commands and options in this shell, and stop: "
        "sbp-jax --print-completion bash > ~/.local/share/bash-completion/completions/sbp-jax",
    )  # fmt: skip
    subparsers = whole.add_subparsers(metavar="COMMAND", required=True)
    for name, (help, examples, build) in _COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=help, description=build.__doc__, epilog=examples and f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=build(sub))
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: this process's own) and give its exit code."""
    with contextlib.redirect_stdout(_Pipe(sys.stdout)), contextlib.redirect_stderr(_Pipe(sys.stderr)):
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _run(argv: Sequence[str] | None) -> int:
    args = None
    try:
        args = parser().parse_args(argv)
        if getattr(args, "needs_face", True):
            getattr(sys.modules[__name__.partition(".")[0]], "_load_face")()  # noqa: B009  not of the module's type
        return args.run(args) or 0
    except SystemExit as stop:  # argparse has printed its message, or the help asked for
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except SbpError as error:
        if getattr(args, "traceback", False):
            traceback.print_exception(error)
        print(f"sbp-jax: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


class _Pipe(io.TextIOBase):
    """A stream whose reader may have seen enough (`sbp-jax plan ... | head`): what comes after goes nowhere, and the
    command runs to its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str, /) -> int:
        with self._closed_or_not():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        if self._stream.closed:  # a stream is flushed once more when it is collected, which may be later than that
            return
        with self._closed_or_not():
            self._stream.flush()

    @contextlib.contextmanager
    def _closed_or_not(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        import jax

        from .facts import versions

        print(f"sbp-jax {versions(('sbp-jax',))['sbp-jax']}, jax {jax.__version__}, Python {sys.version.split()[0]}")
        parser.exit()


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Errors of other people's code, as ``SbpError``s that say what it was, what happened and on which line."""
    try:
        yield
    except (SbpError, InternalError):
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
        where = f"\n  at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
        text = " ".join(str(error).split("\n\n")[0].split())
        raise SbpError(f"{what} failed: {type(error).__name__}: {text}{where}") from error


def _is_users(file: str) -> bool:
    ours = str(Path(__file__).parents[1])
    return not (file.startswith((ours, "<")) or "site-packages" in file or file.startswith(sys.base_prefix))


def add_traceback(parser: argparse.ArgumentParser) -> None:
    """``--traceback``, for commands that run other people's code."""
    parser.add_argument("--traceback", action="store_true", help="show where an error came from, frame by frame")


def check_output(path: str | None) -> Path | None:
    """The path of ``--output``, before time is spent on what goes there."""
    if path is None:
        return None
    output = Path(path)
    folder = output.absolute().parent
    if not folder.is_dir():
        raise SbpError(f"--output {path!r}: there is no folder {str(folder)!r}")
    if output.is_dir():
        raise SbpError(f"--output {path!r} is a folder: give the name of a file in it")
    if not os.access(output if output.exists() else folder, os.W_OK):
        raise SbpError(f"--output {path!r}: no permission to write there")
    return output
