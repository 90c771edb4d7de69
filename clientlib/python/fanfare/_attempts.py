"""Whether and when a unary call that failed is made again. No I/O, for both clients."""

from __future__ import annotations

import time
from typing import Callable

import grpc

from ._backoff import Backoff
from .errors import FanfareError, OutcomeUnknown, never_sent, outcome_unknown

# After these the call may have been executed, whatever the reason: a fault in the
# server may come after the commit. UNAVAILABLE with a reason says that it was not.
_AMBIGUOUS = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    )
)

# These are answers of a server that looked for the key: no earlier attempt with it was
# executed either.
_SETTLING = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    )
)


class Attempts:
    """The attempts of one call, in all at most ``timeout`` seconds.

    ``safe`` says that the call may be executed twice and has an effect once. Each
    attempt then takes at most ``attempt_timeout`` seconds. A call that is not safe is
    made again only if the one before was certainly not executed, and ends with
    `OutcomeUnknown` if it may have been.
    """

    def __init__(
        self,
        safe: bool,
        timeout: float,
        attempt_timeout: float,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._safe = safe
        self._attempt_timeout = attempt_timeout if safe else timeout
        self._backoff = backoff
        self._clock = clock
        self._end = clock() + timeout
        # An earlier attempt may have been executed.
        self._open = False

    def timeout(self) -> float:
        """Returns how many seconds the next attempt may take."""
        return min(self._attempt_timeout, max(0.0, self._end - self._clock()))

    def failed(self, error: FanfareError) -> float:
        """Takes the error of an attempt. Returns after how many seconds to make the
        next one, or raises what the caller is to get."""
        if _not_done(error):
            again = True
        elif error.code in _AMBIGUOUS:
            self._open = True
            again = self._safe
        else:
            again = False
        if again:
            delay = self._backoff.next(error.retry_in)
            if self._clock() + delay < self._end:
                return delay
        raise self.given_up(error)

    def given_up(self, error: FanfareError) -> FanfareError:
        """Returns what the caller is to get if there is no attempt after this error."""
        if not self._open or error.code in _SETTLING or isinstance(error, OutcomeUnknown):
            return error
        unknown = outcome_unknown(error)
        unknown.__cause__ = error
        return unknown


def _not_done(error: FanfareError) -> bool:
    """Whether nothing was done, and doing it again may help."""
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return bool(error.reason) or never_sent(error)
    return error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_in is not None
