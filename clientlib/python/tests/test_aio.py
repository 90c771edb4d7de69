"""The asyncio client at a real server. Its rules are those of test_resumption and
test_calls, so here is what is its own: calls, waiting, cancelling."""

from __future__ import annotations

import asyncio
import gc
import unittest
from typing import Any, List, Type, TypeVar

from fanfare import (
    CaughtUp,
    Closed,
    Event,
    ExpectationFailed,
    Frame,
    Interrupted,
    InvalidField,
    NewFrame,
    OutcomeUnknown,
    Start,
    Subscribed,
)
from fanfare.aio import Client, Subscription

from .servers import PATIENCE, Proxy, Server, free_port
from .test_client import numbered

E = TypeVar("E")


async def take(subscription: Subscription, kind: Type[E]) -> E:
    """Returns the next event of a kind, and lets those before it go."""

    async def found() -> E:
        async for event in subscription:
            if isinstance(event, kind):
                return event
        raise AssertionError(f"the subscription ended without {kind.__name__}")

    return await asyncio.wait_for(found(), PATIENCE)


async def rest(subscription: Subscription) -> List[Event]:
    """Returns what comes until the subscription ends."""

    async def all_events() -> List[Event]:
        return [event async for event in subscription]

    return await asyncio.wait_for(all_events(), PATIENCE)


async def take_payloads(subscription: Subscription, count: int) -> List[bytes]:
    return [(await take(subscription, Frame)).payload for _ in range(count)]


class AioTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        self.client = self.new_client(self.server.target)

    def new_client(self, *targets: str) -> Client:
        client = Client(targets, backoff=(0.01, 0.1))
        self.addAsyncCleanup(client.close)
        return client

    async def publish(self, *payloads: bytes) -> None:
        await self.client.publish_batch(NewFrame("c", "s", payload) for payload in payloads)

    async def test_yields_what_was_published(self) -> None:
        published = await self.client.publish("c", "s", b"1", headers={"k": "v"})
        async with self.client.subscribe("c", "s") as subscription:
            frame = await take(subscription, Frame)
            self.assertEqual((frame.position, frame.payload, frame.headers), (published.position, b"1", {"k": "v"}))
            await take(subscription, CaughtUp)
            self.assertEqual(subscription.position, published.position)

    async def test_says_what_was_refused(self) -> None:
        with self.assertRaises(ExpectationFailed):
            await self.client.publish("c", "s", expected_sequence=5)
        subscription = self.client.subscribe("", "s")
        with self.assertRaises(InvalidField):
            await take(subscription, Subscribed)
        self.assertEqual(await rest(subscription), [])

    async def test_ends_when_the_stream_is_closed(self) -> None:
        published = await self.client.publish("c", "s", b"1")
        assert published.position is not None
        subscription = self.client.subscribe("c", "s")
        await take(subscription, CaughtUp)
        await self.client.close_stream("c", "s")
        self.assertEqual(await rest(subscription), [Closed(published.position)])

    async def test_resumes_exactly_after_every_cut(self) -> None:
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        subscription = self.new_client(proxy.target).subscribe("c", "s")
        got: List[bytes] = []
        interruptions = 0
        for round in range(10):
            first = 10 * round + 1
            await self.publish(*numbered(first, first + 9))
            while len(got) < first + round % 10:
                event = await subscription.__anext__()
                interruptions += isinstance(event, Interrupted)
                if isinstance(event, Frame):
                    got.append(event.payload)
            proxy.cut()
        got += await take_payloads(subscription, 100 - len(got))
        self.assertEqual(got, numbered(1, 100))
        self.assertGreater(interruptions, 4)

    async def test_has_nobody_told_of_a_call_that_nobody_waits_for(self) -> None:
        # asyncio logged a traceback, as of an error that was forgotten.
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        subscription = self.new_client(proxy.target).subscribe("c", "s")
        await take(subscription, CaughtUp)
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(subscription.__anext__(), 0.01)
        complaints: List[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        read = subscription._read
        assert read is not None
        proxy.cut()
        await asyncio.wait((read,), timeout=PATIENCE)
        self.assertTrue(read.done())
        del read, subscription
        gc.collect()
        self.assertEqual(complaints, [])

    async def test_resumes_after_a_crash(self) -> None:
        subscription = self.client.subscribe("c", "s")
        await self.publish(b"before")
        self.assertEqual(await take_payloads(subscription, 1), [b"before"])
        self.server.end()
        self.server.start()
        await self.publish(b"after")
        self.assertEqual(await take_payloads(subscription, 1), [b"after"])

    async def test_loses_nothing_when_a_wait_is_cancelled(self) -> None:
        subscription = self.client.subscribe("c", "s")
        await take(subscription, CaughtUp)
        got: List[bytes] = []
        for payload in numbered(1, 50):
            publishing = asyncio.ensure_future(self.publish(payload))
            # Cancelled before, while and after the frame comes.
            while True:
                try:
                    event = await asyncio.wait_for(subscription.__anext__(), 0.001)
                except asyncio.TimeoutError:
                    continue
                assert isinstance(event, Frame), event
                got.append(event.payload)
                break
            await publishing
        self.assertEqual(got, numbered(1, 50))

    async def test_ends_an_iteration_that_waits(self) -> None:
        subscription = self.client.subscribe("c", "s")
        await take(subscription, CaughtUp)
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
        subscription.close()
        with self.assertRaises(StopAsyncIteration):
            await asyncio.wait_for(waiting, PATIENCE)

    async def test_ends_an_iteration_that_waits_to_call_again(self) -> None:
        patient = Client(self.server.target, backoff=(3600.0, 3600.0))
        subscription = patient.subscribe("c", "s")
        await take(subscription, CaughtUp)
        self.server.end()
        await take(subscription, Interrupted)
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
        await patient.close()
        with self.assertRaises(StopAsyncIteration):
            await asyncio.wait_for(waiting, PATIENCE)
        with self.assertRaises(ValueError):
            patient.subscribe("c", "s")

    async def test_uses_another_target_when_one_is_dead(self) -> None:
        dead = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        for _ in range(3):  # which one comes first is chance
            client = self.new_client(*dead, self.server.target)
            await client.publish("c", "s", ephemeral=True)
            subscription = self.new_client(*dead, self.server.target).subscribe("c", "s", Start.live())
            await take(subscription, Subscribed)

    async def test_gives_up_in_the_time_that_it_was_given(self) -> None:
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        client = self.new_client(proxy.target)
        await client.publish("c", "s", b"1")
        proxy.deaf = True
        with self.assertRaises(OutcomeUnknown):
            await client.publish("c", "s", b"2", timeout=0.3)


if __name__ == "__main__":
    unittest.main()
