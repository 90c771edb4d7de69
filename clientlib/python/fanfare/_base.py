"""What the clients for threads and for asyncio have in common: everything but waiting."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Generic, Optional, Sequence, Tuple, TypeVar, Union

import grpc

from ._access import Access, TokenCache
from ._attempts import Attempts
from ._backoff import Backoff
from ._requests import check_stream
from ._resumption import Hole, Received, Resumption
from ._targets import Targets
from .errors import FanfareError, helps_elsewhere
from .events import Event
from .frames import Position, Start
from .v1 import fanfare_pb2 as pb

Connection = TypeVar("Connection")


class ClientBase(Generic[Connection]):
    """Targets, and how calls to them are repeated."""

    def __init__(
        self,
        targets: Union[str, Sequence[str]],
        connect: Callable[[str], Connection],
        timeout: float,
        attempt_timeout: float,
        idle_timeout: float,
        backoff: Tuple[float, float],
        has_source: bool,
    ) -> None:
        Backoff(*backoff)  # refuses bounds that are none
        for name, seconds in (("timeout", timeout), ("attempt_timeout", attempt_timeout), ("idle_timeout", idle_timeout)):
            check_seconds(name, seconds)
        self._targets = Targets(targets, connect)
        self._timeout = timeout
        self._attempt_timeout = attempt_timeout
        self._idle_timeout = idle_timeout
        self._backoff = backoff
        self._has_source = has_source
        self._token_cache = TokenCache()

    def _access(self) -> Access:
        return Access(self._has_source)

    def _attempts(self, safe: bool, timeout: Optional[float]) -> Attempts:
        if timeout is None:
            timeout = self._timeout
        check_seconds("timeout", timeout)
        return Attempts(safe, timeout, self._attempt_timeout, Backoff(*self._backoff))

    def _resumption(self, channel: str, scope: str, start: Start) -> Resumption:
        if not isinstance(start, Start):
            raise TypeError(f"start must be a Start, as Start.after(position) is, not {type(start).__name__}")
        check_stream(channel, scope)
        return Resumption(channel, scope, start, Backoff(*self._backoff))


class SubscriptionBase(Generic[Connection]):
    """Where the reader of a subscription is, and what is ready for it."""

    def __init__(self, targets: Targets[Connection], resumption: Resumption, access: Access) -> None:
        self._targets = targets
        self._resumption = resumption
        self._access = access
        self._position = resumption.position
        self._ready: Deque[Received] = deque()
        self._failure: Optional[FanfareError] = None
        self._over = False
        self._call: Any = None
        self._number = 0  # of the call's target
        self._resume_at = 0.0

    @property
    def position(self) -> Position:
        """The position after everything that was yielded. Store it with what was made
        of the frames, and begin with ``Start.after`` of it later."""
        return self._position

    def _next_ready(self) -> Optional[Event]:
        """Returns the next event that is ready. If there is none, more must be received
        unless the subscription is over; raises the error that ended it, once."""
        while self._ready:
            event, self._position = self._ready.popleft()
            if event is not None:
                return event
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return None

    def _take(self, response: pb.SubscribeResponse) -> None:
        self._access.accepted()
        try:
            self._ready.extend(self._resumption.take(response))
        except Hole as hole:
            self._ready.extend(hole.received)
            self._call.cancel()
            self._end(hole)

    def _end(self, error: Optional[FanfareError]) -> None:
        """Takes the end of the call."""
        self._call = None
        if error is not None and helps_elsewhere(error):
            self._targets.failed(self._number)
        self._rest(error)

    def _rest(self, error: Optional[FanfareError]) -> None:
        """Decides when the next call is made, if one is."""
        try:
            interrupted = self._resumption.ended(error, renews=self._access.renews(error))
        except FanfareError as final:
            self._failure = final
            interrupted = None
        if interrupted is None:
            self._over = True
            return
        self._resume_at = time.monotonic() + interrupted.retry_in
        self._ready.append(Received(interrupted, self._resumption.position))


def check_seconds(name: str, seconds: float) -> None:
    if not seconds > 0:
        raise ValueError(f"{name} must be above 0 s, and is {seconds}")


def nothing_came(limit: float) -> FanfareError:
    """The error of a call that was ended since nothing came on it."""
    return FanfareError(
        grpc.StatusCode.UNAVAILABLE,
        f"nothing came for {limit:g} s, not even a heartbeat: the connection or the server is taken for dead",
    )
