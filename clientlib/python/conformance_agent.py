"""The agent of ../conformance/README.md: takes commands, tells events, one JSON object a
line, and uses nothing of the client but what its users have. With the argument asyncio
it uses fanfare.aio."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional

from fanfare import (
    aio,
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


class Tokens:
    """Those that the source of the client has left."""

    def __init__(self) -> None:
        self.left: List[str] = []

    def source(self, refresh: bool) -> str:
        """Returns the next token if that is wanted and there is one."""
        if refresh and len(self.left) > 1:
            self.left.pop(0)
        return self.left[0]


class Agent:
    """With threads."""

    def __init__(self) -> None:
        self.client: Client
        self.subscriptions: Dict[str, Subscription] = {}
        self.readers: Dict[str, threading.Thread] = {}
        self.tokens = Tokens()
        # One thread, so that frames keep the order of their commands.
        self.publisher = ThreadPoolExecutor(1)

    def run(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command["op"] == "quit":
                break
            self.take(command)
        self.quit()

    def take(self, command: Message) -> None:
        op, id = command["op"], command.get("id", "")
        if op == "connect":
            self.client = Client(command["targets"], token=self.tokens.source if command.get("tokens") else None)
            tell("connected", language="python", features=[])
        elif op == "tokens":
            self.tokens.left = command["tokens"]
        elif op in ("publish", "publish_batch"):
            self.publisher.submit(answering, command, lambda: self.publish(command))
        elif op == "subscribe":
            subscription = self.client.subscribe(command["channel"], command["scope"], start(command["start"]))
            reader = threading.Thread(target=follow, args=(id, subscription))
            self.subscriptions[id], self.readers[id] = subscription, reader
            reader.start()
        elif op == "unsubscribe":
            self.subscriptions[id].close()  # its reader tells that it ended
        else:
            tell("error", id=id, code="UNIMPLEMENTED", reason="")

    def publish(self, command: Message) -> None:
        if command["op"] == "publish":
            tell_published(command, self.client.publish(**vars(new_frame(command))))
        else:
            tell_published_batch(command, self.client.publish_batch(map(new_frame, command["frames"])))

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


class AioAgent:
    """With asyncio."""

    def __init__(self) -> None:
        self.client: aio.Client
        self.subscriptions: Dict[str, aio.Subscription] = {}
        self.tasks: List["asyncio.Task[None]"] = []
        self.tokens = Tokens()
        # First come, first served, so that frames keep the order of their commands.
        self.publishing = asyncio.Lock()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            command = json.loads(await loop.run_in_executor(None, sys.stdin.readline) or '{"op": "quit"}')
            if command["op"] == "quit":
                break
            await self.take(command)
        if hasattr(self, "client"):
            await self.client.close()
        await asyncio.gather(*self.tasks)

    async def take(self, command: Message) -> None:
        op, id = command["op"], command.get("id", "")
        if op == "connect":
            self.client = aio.Client(command["targets"], token=self.token if command.get("tokens") else None)
            tell("connected", language="python", features=[])
        elif op == "tokens":
            self.tokens.left = command["tokens"]
        elif op in ("publish", "publish_batch"):
            self.tasks.append(asyncio.create_task(self.publish(command)))
        elif op == "subscribe":
            subscription = self.client.subscribe(command["channel"], command["scope"], start(command["start"]))
            self.subscriptions[id] = subscription
            self.tasks.append(asyncio.create_task(self.follow(id, subscription)))
        elif op == "unsubscribe":
            self.subscriptions[id].close()
        else:
            tell("error", id=id, code="UNIMPLEMENTED", reason="")

    async def token(self, refresh: bool) -> str:
        return self.tokens.source(refresh)

    async def publish(self, command: Message) -> None:
        try:
            async with self.publishing:
                if command["op"] == "publish":
                    tell_published(command, await self.client.publish(**vars(new_frame(command))))
                else:
                    tell_published_batch(command, await self.client.publish_batch(map(new_frame, command["frames"])))
        except FanfareError as error:
            tell_error(error, id=command["id"])

    async def follow(self, id: str, subscription: aio.Subscription) -> None:
        try:
            async for event in subscription:
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


def tell_published(command: Message, result: Published) -> None:
    tell("published", id=command["id"], **published(result))


def tell_published_batch(command: Message, results: List[Published]) -> None:
    tell("published_batch", id=command["id"], results=[published(result) for result in results])


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
    if sys.argv[1:] == ["asyncio"]:
        asyncio.run(with_asyncio())
    else:
        Agent().run()


async def with_asyncio() -> None:
    await AioAgent().run()


if __name__ == "__main__":
    main()
