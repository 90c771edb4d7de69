"""How long to wait before an attempt is made again."""

from __future__ import annotations

import random
from typing import Callable, Optional


class Backoff:
    """Waits from 0 to a bound that doubles with every attempt ("full jitter"), so that
    the many clients of a server that went away do not come back together.

    What a server asks for is waited for in any case, and the jitter comes on top.
    """

    def __init__(
        self,
        minimum: float = 0.1,
        maximum: float = 5.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if not 0 < minimum <= maximum:
            raise ValueError("the backoff's minimum must be above 0 and at most its maximum")
        self._minimum = minimum
        self._maximum = maximum
        self._uniform = uniform
        self._bound = minimum

    def next(self, retry_in: Optional[float] = None) -> float:
        """Returns the seconds to wait before the next attempt."""
        bound = self._bound
        self._bound = min(2 * bound, self._maximum)
        return (retry_in or 0.0) + self._uniform(0.0, bound)

    def reset(self) -> None:
        """Begins anew, after an attempt that was worth it."""
        self._bound = self._minimum
