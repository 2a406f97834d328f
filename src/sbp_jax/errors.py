"""The exceptions users meet. All are ``SbpError``, itself a ``ValueError``.

A message says what was called, what it got, which rule that broke, where, and what would do.
"""


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
