"""Bearer tokens: with which calls they are sent, and when a new one is asked for."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import unittest
from typing import Any, Iterator, List, Optional

import grpc

from fanfare import Client, FanfareError, Frame, Interrupted, OutcomeUnknown, Subscribed, aio
from fanfare._access import expires_soon
from fanfare.v1 import fanfare_pb2 as pb
from fanfare.v1 import fanfare_pb2_grpc as rpc

from . import test_aio
from .fakes import refuse, serve
from .servers import PATIENCE
from .test_client import take
from .test_resumption import frames, subscribed

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


class Guarded(rpc.FanfareServiceServicer):
    """Takes one token, until it expires: then its calls end, and the next one is good."""

    def __init__(self) -> None:
        self.good = "token 1"
        self.expired = threading.Event()
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.seen: List[Optional[str]] = []
        self.lost = False

    def check(self, context: Any) -> None:
        token = dict(context.invocation_metadata()).get("authorization")
        with self.lock:
            self.seen.append(token)
        if token != "Bearer " + self.good:
            refuse(context, UNAUTHENTICATED, "UNAUTHENTICATED")

    def expire(self) -> None:
        self.good = "token 2"
        self.expired.set()

    def Publish(self, request: pb.PublishRequest, context: Any) -> pb.PublishResponse:
        if self.lost:
            self.lost = False
            context.abort(grpc.StatusCode.UNKNOWN, "the answer is lost")
        self.check(context)
        return pb.PublishResponse(position=pb.Position(epoch=7, sequence=1))

    def Subscribe(self, request: pb.SubscribeRequest, context: Any) -> Iterator[pb.SubscribeResponse]:
        self.check(context)
        expires = not self.expired.is_set()
        after = request.after.sequence
        yield subscribed(after, resumed=request.HasField("after"))
        yield frames(after + 1)
        if expires:
            self.expired.wait(PATIENCE)
            refuse(context, UNAUTHENTICATED, "TOKEN_EXPIRED")
        self.over.wait(PATIENCE)


class Source:
    """Returns tokens one after the other: the next one when that is asked for."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.asked: List[bool] = []

    def __call__(self, refresh: bool) -> str:
        self.asked.append(refresh)
        if refresh:
            self.tokens.pop(0)
        if not self.tokens:
            raise RuntimeError("there are no more tokens")
        return self.tokens[0]

def jwt(expires: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


class TokenTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Guarded()
        self.target = serve(self, self.server)
        self.addCleanup(self.server.over.set)

    def client(self, source: Source) -> Client:
        client = Client(self.target, backoff=(0.01, 0.01), token=source)
        self.addCleanup(client.close)
        return client

    def test_is_sent_with_each_call(self) -> None:
        client = self.client(Source("token 1"))
        client.publish("c")
        take(client.subscribe("c"), Subscribed)
        self.assertEqual(self.server.seen, ["Bearer token 1"] * 2)

    def test_is_not_sent_without_a_source(self) -> None:
        with Client(self.target) as client, self.assertRaises(FanfareError):
            client.publish("c")
        self.assertEqual(self.server.seen, [None])

    def test_is_asked_for_anew_once_if_it_is_refused(self) -> None:
        source = Source("old", "token 1")
        client = self.client(source)
        client.publish("c")
        self.assertEqual(source.asked, [False, True])
        self.assertEqual(self.server.seen, ["Bearer old", "Bearer token 1"])
        client.publish("c")
        self.assertEqual(source.asked, [False, True, False])

    def test_is_final_if_the_next_one_is_refused_too(self) -> None:
        for call in (lambda client: client.publish("c"), lambda client: take(client.subscribe("c"), Frame)):
            source = Source("old", "older", "token 1")
            with self.assertRaises(FanfareError) as raised:
                call(self.client(source))
            self.assertEqual((raised.exception.code, raised.exception.reason), (UNAUTHENTICATED, "UNAUTHENTICATED"))
            self.assertEqual(source.asked, [False, True])

    def test_is_final_without_a_source(self) -> None:
        with Client(self.target) as client, self.assertRaises(FanfareError) as raised:
            take(client.subscribe("c"), Frame)
        self.assertEqual(raised.exception.code, UNAUTHENTICATED)

    def test_is_fetched_once_for_subscriptions_that_expire_together(self) -> None:
        # Each would have had the source make a token of its own: a storm at who issues
        # them, whenever one expires.
        source = Source("token 1", "token 2", "token 3")
        client = self.client(source)
        subscriptions = [client.subscribe("c", str(n)) for n in range(5)]
        for subscription in subscriptions:
            self.assertEqual(take(subscription, Frame).payload, b"1")
        self.server.expire()
        for subscription in subscriptions:
            self.assertEqual(take(subscription, Interrupted).error.reason, "TOKEN_EXPIRED")
            self.assertEqual(take(subscription, Frame).payload, b"2")
        self.assertEqual(source.asked, [False] * 5 + [True])
        self.assertEqual(self.server.seen, ["Bearer token 1"] * 5 + ["Bearer token 2"] * 5)

    def test_is_asked_for_again_by_a_subscription_whose_source_failed(self) -> None:
        fail = True

        def source(refresh: bool) -> str:
            nonlocal fail
            if fail:
                fail = False
                raise ConnectionError("the issuer is away")
            return "token 1"

        with Client(self.target, backoff=(0.01, 0.01), token=source) as client:
            with self.assertLogs("fanfare", "WARNING") as log:
                self.assertEqual(take(client.subscribe("c"), Frame).payload, b"1")
        self.assertIn("get a token: the issuer is away", log.output[0])

    def test_is_what_a_publish_fails_for_if_there_is_none(self) -> None:
        with self.assertRaisesRegex(FanfareError, "get a token: there are no more tokens") as raised:
            self.client(Source()).publish("c")
        self.assertIsInstance(raised.exception.__cause__, RuntimeError)
        # Not if an earlier attempt may have published the frame.
        self.server.lost = True
        tokens = ["token 1"]
        client = Client(self.target, backoff=(0.01, 0.01), token=lambda refresh: tokens.pop())
        self.addCleanup(client.close)
        with self.assertRaises(OutcomeUnknown):
            client.publish("c")

    def test_must_be_a_text(self) -> None:
        with self.assertRaisesRegex(FanfareError, "returned bytes, not str"):
            Client(self.target, token=lambda refresh: b"token 1").publish("c")  # type: ignore[arg-type, return-value]

    def test_is_asked_for_anew_before_it_expires(self) -> None:
        self.server.good = jwt(time.time() + 3600)
        source = Source(jwt(time.time() + 5), self.server.good)
        self.client(source).publish("c")
        self.assertEqual(source.asked, [False, True])
        self.assertEqual(len(self.server.seen), 1)

    def test_need_not_be_a_json_web_token(self) -> None:
        for token in ("", "a", "a.b.c", "a.!.c", "e30.bnVsbA.c", "e30.e30.c", jwt(time.time() + 60)):
            self.assertFalse(expires_soon(token), token)
        self.assertTrue(expires_soon(jwt(0)))


class AioTokenTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = Guarded()
        self.target = serve(self, self.server)
        self.addCleanup(self.server.over.set)

    async def test_is_fetched_once_for_subscriptions_that_expire_together(self) -> None:
        tokens = Source("token 1", "token 2", "token 3")

        async def source(refresh: bool) -> str:
            token = tokens(refresh)
            await asyncio.sleep(0)
            return token

        async with aio.Client(self.target, backoff=(0.01, 0.01), token=source) as client:
            await client.publish("c")
            subscriptions = [client.subscribe("c", str(n)) for n in range(5)]
            for frame in await asyncio.gather(*(test_aio.take(s, Frame) for s in subscriptions)):
                self.assertEqual(frame.payload, b"1")
            self.server.expire()
            for frame in await asyncio.gather(*(test_aio.take(s, Frame) for s in subscriptions)):
                self.assertEqual(frame.payload, b"2")
        self.assertEqual(tokens.asked, [False] * 6 + [True])

    async def test_is_final_if_the_next_one_is_refused_too(self) -> None:
        # A source may be a function, too.
        source = Source("old", "older", "token 1")
        async with aio.Client(self.target, backoff=(0.01, 0.01), token=source) as client:
            with self.assertRaises(FanfareError) as raised:
                await client.publish("c")
            self.assertEqual((raised.exception.code, source.asked), (UNAUTHENTICATED, [False, True]))

    async def test_is_final_for_a_subscription(self) -> None:
        source = Source("old", "older", "token 1")
        async with aio.Client(self.target, backoff=(0.01, 0.01), token=source) as client:
            with self.assertRaises(FanfareError) as raised:
                await test_aio.take(client.subscribe("c"), Frame)
            self.assertEqual((raised.exception.code, source.asked), (UNAUTHENTICATED, [False, True]))

    async def test_may_be_waited_for_again_if_the_wait_is_cancelled(self) -> None:
        gate = asyncio.Event()

        async def source(refresh: bool) -> str:
            await gate.wait()
            return "token 1"

        async with aio.Client(self.target, token=source) as client:
            subscription = client.subscribe("c")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(subscription.__anext__(), 0.01)
            gate.set()
            self.assertEqual((await test_aio.take(subscription, Frame)).payload, b"1")


if __name__ == "__main__":
    unittest.main()
