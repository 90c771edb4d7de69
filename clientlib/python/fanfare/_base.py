"""What the clients for threads and for asyncio have in common: everything but waiting."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Generic, Optional, Sequence, Tuple, TypeVar, Union

from ._attempts import Attempts
from ._backoff import Backoff
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
        backoff: Tuple[float, float],
    ) -> None:
        Backoff(*backoff)  # refuses bounds that are none
        self._targets = Targets(targets, connect)
        self._timeout = timeout
        self._attempt_timeout = attempt_timeout
        self._backoff = backoff

    def _attempts(self, safe: bool, timeout: Optional[float]) -> Attempts:
        timeout = self._timeout if timeout is None else timeout
        return Attempts(safe, timeout, self._attempt_timeout, Backoff(*self._backoff))

    def _resumption(self, channel: str, scope: str, start: Start) -> Resumption:
        return Resumption(channel, scope, start, Backoff(*self._backoff))


class SubscriptionBase(Generic[Connection]):
    """Where the reader of a subscription is, and what is ready for it."""

    def __init__(self, targets: Targets[Connection], resumption: Resumption) -> None:
        self._targets = targets
        self._resumption = resumption
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
        try:
            pause = self._resumption.ended(error)
        except FanfareError as final:
            self._failure = final
            pause = None
        if pause is None:
            self._over = True
            return
        self._resume_at = time.monotonic() + pause.seconds
        if pause.event is not None:
            self._ready.append(Received(pause.event, self._resumption.position))
