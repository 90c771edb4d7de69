"""Publishes to a chat room and follows it.

    python3 example.py follow ROOM [POSITION]   prints what is published, until Ctrl-C
    python3 example.py say ROOM TEXT…           publishes a line

The server is FANFARE_SERVER, 127.0.0.1:7420 if that is not set; several are separated
by commas.
"""

from __future__ import annotations

import os
import sys
from typing import List, Optional

from fanfare import CaughtUp, Client, Closed, FanfareError, Frame, Gap, Interrupted, Start

CHANNEL = "chat/messages"


def say(client: Client, room: str, text: str) -> None:
    published = client.publish(CHANNEL, room, text.encode(), content_type="text/plain")
    print("published at", published.position)


def follow(client: Client, room: str, position: Optional[str]) -> None:
    start = Start.after(position) if position else Start.oldest()
    with client.subscribe(CHANNEL, room, start) as subscription:
        try:
            for event in subscription:
                if isinstance(event, Frame):
                    print(event.payload.decode(errors="replace"))
                elif isinstance(event, CaughtUp):
                    print("(this was the backlog)")
                elif isinstance(event, Gap):
                    print(f"(frames are missing: {event.reason.name})")
                elif isinstance(event, Interrupted):
                    print(f"(interrupted: {event.error}; again in {event.retry_in:.1f} s)")
                elif isinstance(event, Closed):
                    print("(the room was closed)")
                sys.stdout.flush()
        finally:
            print("go on with", subscription.position)


def main(arguments: List[str]) -> int:
    servers = os.environ.get("FANFARE_SERVER", "127.0.0.1:7420").split(",")
    with Client(servers) as client:
        try:
            if arguments[:1] == ["say"] and len(arguments) > 2:
                say(client, arguments[1], " ".join(arguments[2:]))
                return 0
            if arguments[:1] == ["follow"] and len(arguments) in (2, 3):
                follow(client, arguments[1], arguments[2] if len(arguments) == 3 else None)
                return 0
        except FanfareError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
