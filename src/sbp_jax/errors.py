"""The exceptions users meet. All are ``SbpError``, itself a ``ValueError``, but one: ``InternalError``.

A message says what was called, what it got, which rule that broke, where, and what would do.
"""

_REPORT = "This is a fault of sbp_jax, not of your program: please report it, with the traceback"


class SbpError(ValueError):
    """Base of every error this library raises on purpose."""


class SignatureError(SbpError):
    """A signature that is malformed, or that does not fit a tensor or a placement."""


class PlacementError(SbpError):
    """A placement that cannot be: devices that do not exist, repeated ranks, wrong axis names."""


class PlanError(SbpError):
    """A plan that cannot be made, read back, or applied to this function."""


class PlanMismatch(PlanError):
    """The compiled program's collectives are not the plan's."""


class ScheduleError(SbpError):
    """A pipeline schedule that cannot be made from what is asked, or that cannot run."""


class ActorError(SbpError):
    """A graph of actors that is malformed, that would never complete, or that is used in a way it cannot be."""


class ProcessError(SbpError):
    """Processes that cannot be reached, do not come in time, or do not agree on what they do."""


class DataError(SbpError):
    """A data source, an example or a saved state that ``sbp.data`` cannot use."""


class CheckpointError(SbpError):
    """A checkpoint that cannot be written, or that does not fit what is asked of it."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint whose files are not those that were written."""


class InternalError(RuntimeError):
    """An invariant of this library that does not hold. Neither a ``SbpError`` nor a ``ValueError``: nothing that
    handles users' mistakes, ours or theirs, may take it for one.
    """

    def __init__(self, broken: str) -> None:
        super().__init__(f"{broken}. {_REPORT}")
        self.broken = broken

    def __reduce__(self) -> tuple[type["InternalError"], tuple[str]]:
        return InternalError, (self.broken,)
