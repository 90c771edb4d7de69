"""What is published and delivered, and where it stands in its stream."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field
from typing import Mapping, Optional, Union

from .v1 import fanfare_pb2 as pb

_POSITION = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True)
class Position:
    """A place in a stream; as a starting point, exclusive.

    Positions are compared for equality only: the epoch is an identity, and may change
    from one frame to the next when the database has restarted. ``str(position)`` is
    "EPOCH-SEQUENCE", which `Position.parse` reads: store that, and go on with it.
    ``Position()`` is before the first frame of a stream that has never existed.
    """

    epoch: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.epoch < 1 << 63 and 0 <= self.sequence < 1 << 63):
            raise ValueError(f"{self}: epoch and sequence must be from 0 to 2^63-1")

    def __str__(self) -> str:
        return f"{self.epoch}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads what ``str(position)`` wrote; anything else is a ValueError."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no position: EPOCH-SEQUENCE, two decimal numbers")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Start:
    """Where a subscription begins: one of the four functions makes it."""

    _kind: str
    _value: Union[bool, int, Position]

    @classmethod
    def oldest(cls) -> Start:
        """With everything that the stream may still replay."""
        return cls("oldest", True)

    @classmethod
    def live(cls) -> Start:
        """With frames that are published from now on."""
        return cls("live", True)

    @classmethod
    def after(cls, position: Union[Position, str]) -> Start:
        """With the frame after a position, such as the last one of a subscription."""
        if isinstance(position, str):
            position = Position.parse(position)
        elif not isinstance(position, Position):
            # None would be taken for no start, and all that is stored come again.
            raise TypeError(f"the position must be a Position or its text, not {type(position).__name__}")
        return cls("after", position)

    @classmethod
    def last(cls, frames: int) -> Start:
        """With the newest frames, at most so many."""
        if not isinstance(frames, int):
            raise TypeError(f"the number of frames must be an int, not {type(frames).__name__}")
        if not 0 <= frames < 1 << 64:
            raise ValueError(f"the number of frames must be from 0 to 2^64-1, and is {frames}")
        return cls("last", frames)


@dataclass(frozen=True)
class Frame:
    """A frame of a subscription's stream.

    ``position`` is None of an ephemeral frame, which is not stored and cannot be had
    again. ``created`` is when it was numbered, or published if ephemeral, by the
    store's clock: order is that of delivery alone.
    """

    position: Optional[Position]
    payload: bytes
    content_type: str
    event_type: str
    headers: Mapping[str, str]
    created: datetime.datetime
    ephemeral: bool


@dataclass(frozen=True)
class NewFrame:
    """A frame to publish.

    ``payload`` is bytes, or anything like them such as a bytearray; encode text. A
    durable frame without a key is given one, which makes repeating the call safe;
    ``idempotency_key=""`` is no key. ``expected_sequence``: it is stored only if the
    stream's newest frame has this sequence then, 0 meaning that there is none;
    ``expected_epoch``: and this epoch. An ephemeral frame has none of these.
    """

    channel: str
    scope: str = ""
    payload: bytes = b""
    content_type: str = ""
    event_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: Optional[str] = None
    expected_sequence: Optional[int] = None
    expected_epoch: Optional[int] = None
    ephemeral: bool = False


@dataclass(frozen=True)
class Published:
    """What became of a published frame.

    ``position`` is None of an ephemeral one. ``duplicate``: its key was known, nothing
    was stored, and the position is that of the frame that was stored under it.
    """

    position: Optional[Position]
    duplicate: bool


def position_of(message: pb.Position) -> Position:
    return Position(message.epoch, message.sequence)


def frame_of(message: pb.Frame) -> Frame:
    return Frame(
        position=None if message.ephemeral else position_of(message.position),
        payload=message.payload,
        content_type=message.content_type,
        event_type=message.event_type,
        headers=dict(message.headers),
        created=message.created.ToDatetime().replace(tzinfo=datetime.timezone.utc),
        ephemeral=message.ephemeral,
    )
