"""Publish frames to Fanfare, and follow streams of them.

    from fanfare import Client, Frame, Gap

    with Client("127.0.0.1:7420") as client:
        client.publish("chat/messages", "room-1", b"hello")
        with client.subscribe("chat/messages", "room-1") as subscription:
            for event in subscription:
                if isinstance(event, Frame):
                    print(event.payload, subscription.position)
                elif isinstance(event, Gap):
                    print("missed", event.reason)

A stream is named by a channel and a scope. A subscription goes on at another replica,
or the same one, when its call ends, and yields each durable frame once and in order.
`fanfare.aio` has the same for asyncio.
"""

from ._version import __version__
from .client import Client, Subscription
from .errors import (
    ExpectationFailed,
    FanfareError,
    InvalidField,
    KeyConflict,
    OutcomeUnknown,
)
from .events import (
    CaughtUp,
    Closed,
    Event,
    Gap,
    GapReason,
    Interrupted,
    Status,
    Subscribed,
)
from .frames import Frame, NewFrame, Position, Published, Start

__all__ = [
    "CaughtUp",
    "Client",
    "Closed",
    "Event",
    "ExpectationFailed",
    "FanfareError",
    "Frame",
    "Gap",
    "GapReason",
    "Interrupted",
    "InvalidField",
    "KeyConflict",
    "NewFrame",
    "OutcomeUnknown",
    "Position",
    "Published",
    "Start",
    "Status",
    "Subscribed",
    "Subscription",
    "__version__",
]
