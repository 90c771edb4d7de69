"""A server that takes a subscription and then says nothing, as behind a connection that
went dead without a word. Readers waited for ever: nothing looked whether heartbeats
came."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Any, Iterator

import grpc

from fanfare import Client, Frame, Interrupted, Start, Subscribed, aio
from fanfare.v1 import fanfare_pb2 as pb
from fanfare.v1 import fanfare_pb2_grpc as rpc

from . import test_aio
from .fakes import serve
from .servers import PATIENCE, eventually
from .test_client import take
from .test_resumption import frames, subscribed

LIMIT = 0.3


class Silent(rpc.FanfareServiceServicer):
    """Acknowledges the first call, or not, and says no more. The second has a frame, and
    heartbeats at half the limit before another."""

    def __init__(self, acknowledges: bool) -> None:
        self.acknowledges = acknowledges
        self.calls = 0
        self.over = threading.Event()
        self.ended = threading.Event()

    def Subscribe(self, request: pb.SubscribeRequest, context: Any) -> Iterator[pb.SubscribeResponse]:
        self.calls += 1
        if self.calls == 1:
            context.add_callback(self.ended.set)
            if self.acknowledges:
                yield subscribed(0)
            self.over.wait(PATIENCE)
            return
        after = request.after.sequence
        yield subscribed(after, resumed=request.HasField("after"))
        yield frames(after + 1)
        for _ in range(4):
            self.over.wait(LIMIT / 2)
            yield pb.SubscribeResponse(progress=pb.Progress(position=pb.Position(epoch=7, sequence=after + 1)))
        yield frames(after + 2)
        self.over.wait(PATIENCE)


class IdleTest(unittest.IsolatedAsyncioTestCase):
    def serve(self, acknowledges: bool) -> Silent:
        self.servicer = Silent(acknowledges)
        self.target = serve(self, self.servicer)
        self.addCleanup(self.servicer.over.set)
        return self.servicer

    def test_is_taken_for_dead(self) -> None:
        for acknowledges in (True, False):
            with self.subTest(acknowledges=acknowledges):
                servicer = self.serve(acknowledges)
                with Client(self.target, backoff=(0.01, 0.01), idle_timeout=LIMIT) as client:
                    subscription = client.subscribe("c", "s")
                    if acknowledges:
                        error = take(subscription, Interrupted).error
                        self.assertEqual(error.code, grpc.StatusCode.UNAVAILABLE)
                        self.assertIn("nothing came", error.message)
                    self.assertEqual(take(subscription, Frame).payload, b"1")
                    self.assertTrue(servicer.ended.wait(PATIENCE))
                    # Heartbeats are enough.
                    self.assertEqual(take(subscription, Frame).payload, b"2")
                    self.assertEqual(servicer.calls, 2)

    async def test_is_taken_for_dead_with_asyncio(self) -> None:
        for acknowledges in (True, False):
            with self.subTest(acknowledges=acknowledges):
                servicer = self.serve(acknowledges)
                async with aio.Client(self.target, backoff=(0.01, 0.01), idle_timeout=LIMIT) as client:
                    subscription = client.subscribe("c", "s")
                    if acknowledges:
                        self.assertIn("nothing came", (await test_aio.take(subscription, Interrupted)).error.message)
                    self.assertEqual((await test_aio.take(subscription, Frame)).payload, b"1")
                    self.assertEqual((await test_aio.take(subscription, Frame)).payload, b"2")
                    self.assertEqual(servicer.calls, 2)

    async def test_is_found_by_waits_that_are_shorter(self) -> None:
        # The time counts from when the read began, not from the last wait for it.
        servicer = self.serve(acknowledges=True)
        async with aio.Client(self.target, backoff=(0.01, 0.01), idle_timeout=LIMIT) as client:
            subscription = client.subscribe("c", "s")
            await test_aio.take(subscription, Subscribed)
            for _ in range(1000):
                try:
                    event = await asyncio.wait_for(subscription.__anext__(), LIMIT / 3)
                except asyncio.TimeoutError:
                    continue
                if isinstance(event, Interrupted):
                    self.assertIn("nothing came", event.error.message)
                    break
            else:
                self.fail("the call was not taken for dead")
            self.assertEqual(servicer.calls, 1)

    def test_counts_only_while_the_subscription_is_read(self) -> None:
        # What a reader does between two events may take longer.
        servicer = self.serve(acknowledges=True)
        with Client(self.target, backoff=(0.01, 0.01), idle_timeout=LIMIT) as client:
            resting = client.subscribe("c", "resting")
            take(resting, Subscribed)
            reading = client.subscribe("c", "reading", Start.after("7-4"))
            self.assertEqual(take(reading, Frame).payload, b"5")
            self.assertEqual(take(reading, Frame).payload, b"6")  # after twice the limit
            self.assertFalse(servicer.ended.is_set())

    def test_leaves_no_thread_behind(self) -> None:
        def watches() -> int:
            return sum(thread.name == "fanfare-idle" for thread in threading.enumerate())

        self.serve(acknowledges=True)
        before = watches()
        with Client(self.target, idle_timeout=10 * PATIENCE) as client:
            take(client.subscribe("c", "s"), Subscribed)
            self.assertEqual(watches(), before + 1)
        eventually("the thread ends with the client", lambda: watches() <= before)

    def test_refuses_a_limit_that_is_none(self) -> None:
        for client in (Client, aio.Client):
            with self.assertRaisesRegex(ValueError, "idle_timeout"):
                client("127.0.0.1:1", idle_timeout=0.0)


if __name__ == "__main__":
    unittest.main()
