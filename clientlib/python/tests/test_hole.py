"""A server that skips frames, as no real one does."""

from __future__ import annotations

import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator, List

import grpc

from fanfare import Client, FanfareError, Interrupted
from fanfare._resumption import MAX_HOLES
from fanfare.v1 import fanfare_pb2 as pb
from fanfare.v1 import fanfare_pb2_grpc as rpc

from .test_client import take, take_payloads
from .test_resumption import frames, position, subscribed


class Skipping(rpc.FanfareServiceServicer):
    """Skips frame 3 in the first calls."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.requests: List[pb.SubscribeRequest] = []

    def Subscribe(self, request: pb.SubscribeRequest, context: Any) -> Iterator[pb.SubscribeResponse]:
        self.requests.append(request)
        after = request.after.sequence
        yield subscribed(after, resumed=request.HasField("after"))
        rest = [n for n in range(after + 1, 6) if n != 3 or len(self.requests) > self.times]
        yield frames(*rest)
        yield pb.SubscribeResponse(closed=pb.Closed(last=position(5)))


class HoleTest(unittest.TestCase):
    def follow(self, servicer: Skipping) -> Client:
        server = grpc.server(ThreadPoolExecutor(2))
        rpc.add_FanfareServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(lambda: server.stop(None).wait())
        client = Client(f"127.0.0.1:{port}", backoff=(0.01, 0.01))
        self.addCleanup(client.close)
        return client

    def test_is_filled_by_calling_again(self) -> None:
        servicer = Skipping(times=1)
        subscription = self.follow(servicer).subscribe("c", "s")
        self.assertEqual(take_payloads(subscription, 2), [b"1", b"2"])
        self.assertEqual(take(subscription, Interrupted).error.code, grpc.StatusCode.DATA_LOSS)
        self.assertEqual(take_payloads(subscription, 3), [b"3", b"4", b"5"])
        self.assertEqual(servicer.requests[1].after, position(2))

    def test_ends_the_subscription_if_it_stays(self) -> None:
        servicer = Skipping(times=100)
        subscription = self.follow(servicer).subscribe("c", "s")
        self.assertEqual(take_payloads(subscription, 2), [b"1", b"2"])
        with self.assertRaises(FanfareError) as raised:
            take_payloads(subscription, 1)
        self.assertEqual(raised.exception.code, grpc.StatusCode.DATA_LOSS)
        self.assertEqual(len(servicer.requests), MAX_HOLES)


if __name__ == "__main__":
    unittest.main()
