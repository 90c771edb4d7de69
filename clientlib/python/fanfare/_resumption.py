"""What a subscription has received, and how it goes on when its call ends. No I/O: the
clients begin the calls, hand over what comes, and wait.

The position that the next call begins with is that of the last frame or notice received.
It is not the one that the reader sees, which follows what was yielded.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, List, NamedTuple, Optional

import grpc

from ._backoff import Backoff
from ._requests import subscribe_request
from .errors import FanfareError, ends_subscription
from .events import CaughtUp, Closed, Event, Gap, GapReason, Interrupted, Status, Subscribed
from .frames import Position, Start, frame_of, position_of
from .v1 import fanfare_pb2 as pb

logger = logging.getLogger("fanfare")

# So many calls in a row that skip frames without saying so end the subscription: the
# server is at fault, and would be for ever.
MAX_HOLES = 5

# A call that lasted so long in seconds was worth it, and the backoff begins anew.
HEALTHY = 5.0


class Received(NamedTuple):
    """An event, if there is one to yield, and where the reader is after it."""

    event: Optional[Event]
    position: Position


class Hole(FanfareError):
    """The server skipped frames without a Gap. What came before them is ``received``."""

    def __init__(self, received: List[Received], message: str) -> None:
        super().__init__(grpc.StatusCode.DATA_LOSS, message)
        self.received = received


class Resumption:
    """One subscription's state, from call to call."""

    def __init__(
        self,
        channel: str,
        scope: str,
        start: Start,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._scope = scope
        self._start = start
        self._backoff = backoff
        self._clock = clock
        # None until the server has said where delivery begins.
        self._position = start._value if isinstance(start._value, Position) else None
        # The head of a closed stream of whose next numbering nothing has come yet.
        self._awaits = Position()
        self._seen_ephemeral = False
        self._holes = 0
        self._interrupted = False
        # Calls in a row that were never in force.
        self._failures = 0
        self._begin_call()

    def _begin_call(self) -> None:
        self._subscribed = False
        self._closed = False
        # True from a Subscribed that did not resume to the Gap that says why.
        self._owes_gap = False
        self._retry_in: Optional[float] = None
        self._began = self._clock()

    @property
    def position(self) -> Position:
        return self._position or Position()

    def request(self) -> pb.SubscribeRequest:
        """Begins a call and returns its request."""
        self._begin_call()
        start = self._start if self._position is None else Start.after(self._position)
        return subscribe_request(self._channel, self._scope, start)

    def take(self, response: pb.SubscribeResponse) -> List[Received]:
        """Takes a response, and raises `Hole` at a frame before which some are missing."""
        received: List[Received] = []
        for frame in response.frames:
            self._take_frame(frame, received)
        kind = response.WhichOneof("notice")
        if kind is not None:
            self._take_notice(kind, response, received)
        return received

    def _take_frame(self, message: pb.Frame, received: List[Received]) -> None:
        if not self._subscribed:
            raise Hole(received, "a frame came before Subscribed")
        if message.ephemeral:
            self._seen_ephemeral = True
        else:
            position = position_of(message.position)
            if position.epoch == self.position.epoch and position.sequence <= self.position.sequence:
                return  # a repetition
            if self._owes_gap or position.sequence != self.position.sequence + 1:
                raise Hole(received, f"frame {position} came after {self.position} without a Gap")
            self._position, self._awaits = position, Position()
            self._holes = 0
            self._backoff.reset()
        received.append(Received(frame_of(message), self.position))

    def _take_notice(self, kind: str, response: pb.SubscribeResponse, received: List[Received]) -> None:
        event: Optional[Event] = None
        if kind == "subscribed":
            self._take_subscribed(response.subscribed, received)
            return
        if kind == "gap":
            event = self._take_gap(response.gap)
        elif kind == "caught_up":
            self._check_reached(response.caught_up.position, received)
            event = CaughtUp(self.position)
        elif kind == "progress":
            self._check_reached(response.progress.position, received)
        elif kind == "status":
            event = Status(response.status.listening)
        elif kind == "closed":
            self._check_reached(response.closed.last, received)
            self._closed = True
            event = Closed(position_of(response.closed.last))
        elif kind == "closing":
            # Its position is that of the frame or notice before it.
            self._retry_in = _seconds(response.closing.retry_in)
        received.append(Received(event, self.position))

    def _check_reached(self, at: pb.Position, received: List[Received]) -> None:
        """Raises `Hole` if the server believes to have sent what did not come."""
        if at.sequence > self.position.sequence:
            raise Hole(received, f"the server is at {position_of(at)}, and {self.position} came last")

    def _take_subscribed(self, message: pb.Subscribed, received: List[Received]) -> None:
        self._subscribed = True
        self._failures = 0
        event = Subscribed(
            head=position_of(message.head),
            oldest=message.oldest,
            resume_after=position_of(message.resume_after),
            resumed=message.resumed,
            ephemeral=message.ephemeral,
        )
        if self._position is None:
            # One that resumed keeps its position: if that is not good, a Gap follows,
            # and comes again should the call end before it.
            self._move_to(event.resume_after, event.head)
        elif not event.resumed:
            self._owes_gap = True
        received.append(Received(event, self.position))
        self._seen_ephemeral = self._seen_ephemeral or event.ephemeral
        if self._interrupted and self._seen_ephemeral:
            missed = Gap(
                reason=GapReason.EPHEMERAL_MAYBE_MISSED,
                requested=self.position,
                oldest=event.oldest,
                head=event.head,
                resume_after=self.position,
            )
            received.append(Received(missed, self.position))
        self._interrupted = False

    def _move_to(self, position: Position, head: Position) -> None:
        """At 0-0 delivery goes on with the next numbering, and head is that of the last."""
        self._position = position
        self._awaits = head if position == Position() else Position()

    def _take_gap(self, message: pb.Gap) -> Optional[Gap]:
        """Returns None for one that tells of no loss: who waits for the next numbering of
        a closed stream is at 0-0, which the server cannot resume from. As long as it is
        the same numbering that is closed there is nothing to miss."""
        gap = Gap(
            reason=GapReason(message.reason),
            requested=position_of(message.requested),
            oldest=message.oldest,
            head=position_of(message.head),
            resume_after=position_of(message.resume_after),
        )
        if gap.reason == GapReason.EPHEMERAL_MAYBE_MISSED:
            self._seen_ephemeral = True
            return gap
        self._owes_gap = False
        nowhere = Position()
        waits = self.position == gap.resume_after == nowhere and gap.head == self._awaits != nowhere
        self._move_to(gap.resume_after, gap.head)
        return None if waits else gap

    def ended(self, error: Optional[FanfareError], renews: bool = False) -> Optional[Interrupted]:
        """Takes the end of a call, with its error or None if it ended OK, and whether
        the next one has another token. Returns what the reader is told, None if the
        stream was closed, and raises the error if the next call would fail as well."""
        if self._closed:
            return None
        if error is None:
            error = FanfareError(grpc.StatusCode.UNAVAILABLE, "the call ended and no reason was given")
        if isinstance(error, Hole):
            self._holes += 1
            if self._holes >= MAX_HOLES:
                raise error
        elif ends_subscription(error) and not renews:
            raise error
        if self._subscribed and self._clock() - self._began >= HEALTHY:
            self._backoff.reset()
        seconds = self._backoff.next(error.retry_in if self._retry_in is None else self._retry_in)
        self._interrupted = self._interrupted or self._subscribed
        if not self._subscribed:
            self._log(error, seconds)
        return Interrupted(error, seconds)

    def _log(self, error: FanfareError, seconds: float) -> None:
        """Tells of calls that could not begin, the first in a row, the second, the
        fourth, …: who asks for frames alone hears nothing of a server that is away."""
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            logger.warning(
                "subscribing to %r, scope %r, attempt %d: %s; again in %.1f s",
                self._channel,
                self._scope,
                self._failures,
                error,
                seconds,
            )


def _seconds(duration: Any) -> float:
    return max(0.0, float(duration.seconds + duration.nanos / 1e9))
