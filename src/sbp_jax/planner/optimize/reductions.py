"""What every presolve does to a node: its best answers to its neighbours, and which of its choices others beat.

``presolve.py`` does so with costs alone, ``kernel.py`` with bytes beside them; ``methods/dp.py`` and ``exhaustive.py``
make larger tables, of as many entries at most.
"""

import numpy as np

# A table has at most so many entries (32 MB of float64, 50 ms); a comparison of a
# node's choices looks at no more than so many: where that is long, bounds strike most of them in less time
# (``bounds.py``; LLaMA-3-8B on 4x4x4, 679 choices: the whole search 3 s against 46 s).
MOST_ENTRIES = 4_000_000
MOST_COMPARED = 1_000_000


def best_answers(cost: np.ndarray, *edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each choice of a node's neighbours, none to two of them, what the node's best choice costs, and which it is.

    ``edges`` have the neighbours' choices as rows, the node's as columns. (Node and edge elimination: Jia, Zaharia and
    Aiken, arXiv:1802.04924, section 5.)
    """
    total = edges[0] + cost if edges else cost
    if len(edges) == 2:
        total = total[:, None, :] + edges[1][None, :, :]
    return total.min(axis=-1), total.argmin(axis=-1)


def unbeaten(cost: np.ndarray, beaten_by: np.ndarray) -> np.ndarray:
    """Which choices stay where ``beaten_by[s, t]`` says that ``t`` is never worse than ``s``; of equal ones one stays.

    (Dead-end elimination: Goldstein, Biophys. J. 66, 1994.)
    """
    beaten = np.asarray(beaten_by.any(axis=1))
    keep = np.ones(len(cost), bool)
    for s in np.argsort(-cost, kind="stable"):
        if beaten[s] and (beaten_by[s] & keep).any():
            keep[s] = False
    return keep
