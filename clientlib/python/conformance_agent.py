"""The agent of ../conformance/README.md: takes commands, tells events, one JSON object a
line, and uses nothing of the client but what its users have."""

from __future__ import annotations

import base64
import json
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional

from fanfare import (
    CaughtUp,
    Client,
    Closed,
    Event,
    FanfareError,
    Frame,
    Gap,
    Interrupted,
    NewFrame,
    Position,
    Published,
    Start,
    Status,
    Subscribed,
    Subscription,
)

Message = Dict[str, Any]

_output = threading.Lock()


def tell(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, **fields})
    with _output:
        print(line, flush=True)


def tell_error(error: FanfareError, **fields: Any) -> None:
    tell("error", **fields, code=error.code.name, reason=error.reason)


class Agent:
    def __init__(self) -> None:
        self.client: Client
        self.subscriptions: Dict[str, Subscription] = {}
        self.readers: Dict[str, threading.Thread] = {}
        # Those that the source of the client has left.
        self.tokens: List[str] = []
        # One thread, so that frames keep the order of their commands.
        self.publisher = ThreadPoolExecutor(1)

    def take(self, command: Message) -> None:
        op = getattr(self, "op_" + command["op"], None)
        if op is None:
            tell("error", id=command.get("id"), code="UNIMPLEMENTED", reason="")
        else:
            op(command)

    def op_connect(self, command: Message) -> None:
        self.client = Client(command["targets"], token=self.token if command.get("tokens") else None)
        tell("connected", language="python", features=[])

    def op_tokens(self, command: Message) -> None:
        self.tokens = command["tokens"]

    def token(self, refresh: bool) -> str:
        """Returns the next token if that is wanted and there is one."""
        if refresh and len(self.tokens) > 1:
            self.tokens.pop(0)
        return self.tokens[0]

    def op_publish(self, command: Message) -> None:
        frame = new_frame(command)

        def publish() -> None:
            result = self.client.publish(**vars(frame))
            tell("published", id=command["id"], **published(result))

        self.publisher.submit(answering, command, publish)

    def op_publish_batch(self, command: Message) -> None:
        frames = [new_frame(frame) for frame in command["frames"]]

        def publish() -> None:
            results = self.client.publish_batch(frames)
            tell("published_batch", id=command["id"], results=[published(result) for result in results])

        self.publisher.submit(answering, command, publish)

    def op_subscribe(self, command: Message) -> None:
        id = command["id"]
        subscription = self.client.subscribe(command["channel"], command["scope"], start(command["start"]))
        reader = threading.Thread(target=follow, args=(id, subscription))
        self.subscriptions[id], self.readers[id] = subscription, reader
        reader.start()

    def op_unsubscribe(self, command: Message) -> None:
        # Its reader tells that it ended.
        self.subscriptions[command["id"]].close()

    def quit(self) -> None:
        self.publisher.shutdown()
        if hasattr(self, "client"):
            self.client.close()
        for reader in self.readers.values():
            reader.join()


def answering(command: Message, work: Callable[[], None]) -> None:
    """Does a command's work and answers with its error if it has one."""
    try:
        work()
    except FanfareError as error:
        tell_error(error, id=command["id"])
    except Exception:
        logging.exception("%s", command["op"])
        tell("error", id=command["id"], code="INTERNAL", reason="")


def follow(id: str, subscription: Subscription) -> None:
    try:
        for event in subscription:
            tell_event(id, event)
    except FanfareError as error:
        tell_error(error, id=id)
    else:
        tell("ended", id=id)


def tell_event(id: str, event: Event) -> None:
    if isinstance(event, Frame):
        tell(
            "frame",
            id=id,
            position=text(event.position),
            payload=base64.b64encode(event.payload).decode(),
            content_type=event.content_type,
            event_type=event.event_type,
            headers=dict(event.headers),
            ephemeral=event.ephemeral,
        )
    elif isinstance(event, Subscribed):
        tell(
            "subscribed",
            id=id,
            head=text(event.head),
            oldest=str(event.oldest),
            resume_after=text(event.resume_after),
            resumed=event.resumed,
        )
    elif isinstance(event, CaughtUp):
        tell("caught_up", id=id, position=text(event.position))
    elif isinstance(event, Gap):
        tell(
            "gap",
            id=id,
            reason=event.reason.name,
            requested=text(event.requested),
            oldest=str(event.oldest),
            head=text(event.head),
            resume_after=text(event.resume_after),
        )
    elif isinstance(event, Status):
        tell("status", id=id, listening=event.listening)
    elif isinstance(event, Closed):
        tell("closed", id=id, last=text(event.last))
    elif isinstance(event, Interrupted):
        logging.info("%s: %s; again in %.2f s", id, event.error, event.retry_in)
        tell("interrupted", id=id)


def text(position: Optional[Position]) -> Optional[str]:
    return None if position is None else str(position)


def published(result: Published) -> Message:
    return {"position": text(result.position), "duplicate": result.duplicate}


def new_frame(command: Message) -> NewFrame:
    expected = command.get("expected_sequence")
    return NewFrame(
        channel=command["channel"],
        scope=command["scope"],
        payload=base64.b64decode(command["payload"]),
        content_type=command.get("content_type", ""),
        event_type=command.get("event_type", ""),
        headers=command.get("headers") or {},
        idempotency_key=command.get("idempotency_key") or None,
        expected_sequence=None if expected is None else int(expected),
        ephemeral=command.get("ephemeral", False),
    )


def start(command: Message) -> Start:
    if "after" in command:
        return Start.after(command["after"])
    if "last" in command:
        return Start.last(int(command["last"]))
    return Start.live() if command.get("live") else Start.oldest()


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="python agent: %(message)s")
    agent = Agent()
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "quit":
            break
        agent.take(command)
    agent.quit()


if __name__ == "__main__":
    main()
