"""Prices for bytes (Lagrange multipliers) at the points where plans exceed the limit.

After each change of prices one sweep of messages there and back gives a bound, and a plan whose excess says how to
change them: an averaged subgradient step of Polyak's length (Held, Wolfe and Crowder, Math. Prog. 6, 1974).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .arrays import Flat, peaks
from .messages import Messages

# Of the averaged excess, what is from before; the first step as a part of Polyak's length, times so much whenever the
# bound has not grown for so many steps. Set by hand; benchmarks/results/contest.txt shows what it leads to.
_MEMORY = 0.6
_STEP = 0.3
_SMALLER = 0.7
_PATIENCE = 6
# The optimum is taken to be at most so much above the bound.
_PROMISE = 1.3
# Of the points above the limit so many get prices at once, this part of all points apart.
_PEAKS = 30
_APART = 1000
# The square of excesses, in parts of the limit, from which on there is none.
_NO_EXCESS = 1e-18


class Multipliers:
    """The prices that gave the best bound so far, and the steps to better ones.

    ``offer`` gets every plan on the way with its profile, and returns the cost of the best plan known.
    """

    def __init__(self, f: Flat, messages: Messages, offer: Callable[[np.ndarray, np.ndarray], float]) -> None:
        self.f, self.messages, self.offer = f, messages, offer
        self.prices = np.zeros(len(f.base))
        self.best_prices = self.prices.copy()
        self.bound = -np.inf
        self.alpha, self.stalled = 1.0, 0
        self.average: np.ndarray | None = None
        self.upper = np.inf

    def step(self) -> bool:
        """One change of prices; False where no plan exceeds the limit and nothing has a price."""
        f, m = self.f, self.messages
        m.set_prices(self.prices)
        bound = max(m.sweep(True), m.sweep(False))
        choice = m.read()
        profile = f.profile(choice)
        self.upper = self.offer(choice, profile)
        if bound > self.bound:
            self.bound, self.best_prices, self.stalled = bound, self.prices.copy(), 0
        else:
            self.stalled += 1
            if self.stalled >= _PATIENCE:
                self.alpha *= _SMALLER
                self.stalled = 0
        counted = self.prices > 0
        counted[peaks(profile, f.limit_bytes, _PEAKS, len(profile) // _APART)] = True
        scale = max(f.limit_bytes, 1.0)
        excess = np.where(counted, (profile - f.limit_bytes) / scale, 0.0)
        known = self.average
        self.average = excess if known is None else _MEMORY * known + (1 - _MEMORY) * excess
        self.average[~counted] = 0.0
        length = float((self.average**2).sum())
        if length < _NO_EXCESS:
            self.average = None
            return False
        aim = min(self.upper, self.bound + (_PROMISE - 1) * abs(self.bound))
        far = _STEP * self.alpha * max(aim - bound, 0.0) / length
        self.prices = np.maximum(0.0, self.prices + far * self.average / scale)
        return True

    def limit(self, limit_bytes: float) -> None:
        """Go on within another limit: from these prices, without the bound."""
        self.f = self.messages.f = replace(self.f, limit_bytes=limit_bytes)
        self.bound = -np.inf

    def restart(self, prices: np.ndarray, alpha: float) -> None:
        """Go on from other prices."""
        self.prices, self.average, self.alpha, self.stalled = prices.copy(), None, alpha, 0
