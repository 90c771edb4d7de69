"""What becomes of publishes when their client is closed. They raised grpc's words about
closed channels, or asyncio.CancelledError although nobody had cancelled the task, and
went on at other targets over connections that nobody closed any more: repeating a call
did not know of the close."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Any, List

from fanfare import Client, FanfareError, OutcomeUnknown, aio
from fanfare.v1 import fanfare_pb2 as pb
from fanfare.v1 import fanfare_pb2_grpc as rpc

from .fakes import serve
from .servers import PATIENCE, free_port


class Holding(rpc.FanfareServiceServicer):
    """Stores what is published and does not answer until it is told to."""

    def __init__(self) -> None:
        self.publishing = threading.Event()
        self.answer = threading.Event()

    def Publish(self, request: pb.PublishRequest, context: Any) -> pb.PublishResponse:
        self.publishing.set()
        self.answer.wait(PATIENCE)
        return pb.PublishResponse(position=pb.Position(epoch=1, sequence=1))


class CloseTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Holding()
        self.target = serve(self, self.server)
        self.addCleanup(self.server.answer.set)

    def test_leaves_the_outcome_of_a_publish_open(self) -> None:
        for targets in ([self.target], [self.target] * 3):
            for key in (None, ""):
                with self.subTest(targets=len(targets), key=key):
                    self.server.publishing.clear()
                    client = Client(targets)
                    errors: List[BaseException] = []

                    def publish() -> None:
                        try:
                            client.publish("c", payload=b"1", idempotency_key=key)
                        except BaseException as error:
                            errors.append(error)

                    publishing = threading.Thread(target=publish)
                    publishing.start()
                    self.assertTrue(self.server.publishing.wait(PATIENCE))
                    client.close()
                    publishing.join(PATIENCE)
                    self.assertEqual([type(error) for error in errors], [OutcomeUnknown])
                    self.assertEqual(client._targets._connections, {})

    def test_ends_the_pause_before_an_attempt(self) -> None:
        # Nothing was published, so that is what the caller is told.
        client = Client(f"127.0.0.1:{free_port()}")
        pausing, pause = threading.Event(), client._pause

        def pause_long(seconds: float) -> None:
            pausing.set()
            pause(10 * PATIENCE)

        client._pause = pause_long  # type: ignore[assignment]
        errors: List[BaseException] = []

        def publish() -> None:
            try:
                client.publish("c")
            except BaseException as error:
                errors.append(error)

        publishing = threading.Thread(target=publish)
        publishing.start()
        self.assertTrue(pausing.wait(PATIENCE))
        client.close()
        publishing.join(PATIENCE)
        self.assertEqual([type(error) for error in errors], [FanfareError])

    def test_refuses_calls_afterwards(self) -> None:
        client = Client(self.target)
        client.close()
        for call in (lambda: client.publish("c"), lambda: client.subscribe("c")):
            with self.assertRaisesRegex(ValueError, "^the client is closed$"):
                call()


class AioCloseTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = Holding()
        self.target = serve(self, self.server)
        self.addCleanup(self.server.answer.set)

    async def publishing(self, client: aio.Client) -> asyncio.Task[Any]:
        self.server.publishing.clear()
        task = asyncio.ensure_future(client.publish("c", payload=b"1"))
        began = await asyncio.get_running_loop().run_in_executor(None, self.server.publishing.wait, PATIENCE)
        self.assertTrue(began)
        return task

    async def test_leaves_the_outcome_of_a_publish_open(self) -> None:
        for targets in ([self.target], [self.target] * 3):
            with self.subTest(targets=len(targets)):
                client = aio.Client(targets)
                task = await self.publishing(client)
                await client.close()
                with self.assertRaises(OutcomeUnknown):
                    await asyncio.wait_for(task, PATIENCE)
                self.assertEqual(client._targets._connections, {})

    async def test_leaves_the_cancelling_of_a_publish_to_its_caller(self) -> None:
        async with aio.Client(self.target) as client:
            task = await self.publishing(client)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

    async def test_refuses_calls_afterwards(self) -> None:
        client = aio.Client(self.target)
        await client.close()
        with self.assertRaisesRegex(ValueError, "^the client is closed$"):
            await client.publish("c")
        with self.assertRaisesRegex(ValueError, "^the client is closed$"):
            client.subscribe("c")


if __name__ == "__main__":
    unittest.main()
