"""Sums of products in one order on every machine."""

import numpy as np


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The products of ``a``'s rows (or of the vector ``a``) and ``b``, added up.

    Not ``a @ b``: in which order BLAS adds depends on the kind of CPU and the number of its cores, and a search near a
    memory limit may end at another plan for the last bit of a price.
    """
    return (a * b).sum(axis=-1)
