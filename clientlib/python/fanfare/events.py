"""What a subscription yields: frames, and what else its reader must know."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Union

from .errors import FanfareError
from .frames import Frame, Position


@dataclass(frozen=True)
class Subscribed:
    """The subscription is in force: what is published from now on is delivered.

    It comes first, and again after each `Interrupted`. ``head`` is the stream's newest
    position, ``oldest`` the oldest sequence that may be replayed. Delivery begins after
    ``resume_after``, unless a `Gap` follows. ``resumed``: it began with a position and
    nothing is missing. ``ephemeral``: the stream has ever carried an ephemeral frame.
    """

    head: Position
    oldest: int
    resume_after: Position
    resumed: bool
    ephemeral: bool = False


@dataclass(frozen=True)
class CaughtUp:
    """All frames that were stored before Subscribed have been yielded."""

    position: Position


class GapReason(enum.Enum):
    """Why frames are missing."""

    UNSPECIFIED = 0
    """Another reason, which this version does not know."""
    TRIMMED = 1
    """They are no longer stored."""
    EPOCH_CHANGED = 2
    """The stream was closed and reopened, or the store lost commits."""
    AHEAD = 3
    """The position is ahead of the stream: the store lost commits."""
    EPHEMERAL_MAYBE_MISSED = 4
    """Ephemeral frames may have been missed. No durable one was."""

    @classmethod
    def _missing_(cls, value: object) -> GapReason:
        return cls.UNSPECIFIED


@dataclass(frozen=True)
class Gap:
    """Frames after ``requested`` are not available; delivery goes on after
    ``resume_after``. ``oldest`` is the oldest sequence that can be replayed, ``head``
    the stream's newest position."""

    reason: GapReason
    requested: Position
    oldest: int
    head: Position
    resume_after: Position


@dataclass(frozen=True)
class Status:
    """Whether the server hears of new frames. While it does not, durable frames wait
    and ephemeral ones may be missed."""

    listening: bool


@dataclass(frozen=True)
class Closed:
    """The stream was closed; the subscription ends. ``last`` is its last position."""

    last: Position


@dataclass(frozen=True)
class Interrupted:
    """The call has ended, or could not begin, for ``error``, and the subscription goes
    on by itself: the next attempt is made in ``retry_in`` seconds. Ephemeral frames that
    are published until the next `Subscribed` are missed, durable ones are not.
    """

    error: FanfareError
    retry_in: float


Event = Union[Frame, Subscribed, CaughtUp, Gap, Status, Closed, Interrupted]
