"""The client for asyncio. It does what `fanfare.Client` does, in the same words.

    async with fanfare.aio.Client("127.0.0.1:7420") as client:
        await client.publish("chat/messages", "room-1", b"hello")
        async with client.subscribe("chat/messages", "room-1") as subscription:
            async for event in subscription:
                ...
"""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any, AsyncIterator, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import grpc
import grpc.aio

from ._base import ClientBase, SubscriptionBase
from ._requests import batch_request, close_request, publish_request, published, published_batch
from ._resumption import Resumption
from ._targets import CHANNEL_OPTIONS, Targets
from .errors import FanfareError, error_of, helps_elsewhere
from .events import Event
from .frames import NewFrame, Position, Published, Start, position_of
from .v1 import fanfare_pb2_grpc as rpc


class _Connection(NamedTuple):
    channel: grpc.aio.Channel
    stub: rpc.FanfareServiceStub


class Client(ClientBase[_Connection]):
    """`fanfare.Client` for asyncio: its arguments and methods are the same, and those
    that wait are coroutines. It belongs to the event loop that it is first used in."""

    def __init__(
        self,
        targets: Union[str, Sequence[str]],
        *,
        credentials: Optional[grpc.ChannelCredentials] = None,
        options: Sequence[Tuple[str, Any]] = (),
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        backoff: Tuple[float, float] = (0.1, 5.0),
    ) -> None:
        all_options = (*options, *CHANNEL_OPTIONS)

        def connect(target: str) -> _Connection:
            if credentials is None:
                channel = grpc.aio.insecure_channel(target, all_options)
            else:
                channel = grpc.aio.secure_channel(target, credentials, all_options)
            return _Connection(channel, rpc.FanfareServiceStub(channel))

        super().__init__(targets, connect, timeout, attempt_timeout, backoff)
        self._closed = False
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    async def publish(
        self,
        channel: str,
        scope: str = "",
        payload: bytes = b"",
        *,
        content_type: str = "",
        event_type: str = "",
        headers: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
        expected_sequence: Optional[int] = None,
        expected_epoch: Optional[int] = None,
        ephemeral: bool = False,
        timeout: Optional[float] = None,
    ) -> Published:
        """Publishes a frame, as `fanfare.Client.publish` does."""
        frame = NewFrame(
            channel,
            scope,
            payload,
            content_type,
            event_type,
            headers or {},
            idempotency_key,
            expected_sequence,
            expected_epoch,
            ephemeral,
        )
        request, safe = publish_request(frame)
        return published(await self._call("Publish", request, safe, timeout))

    async def publish_batch(self, frames: Iterable[NewFrame], *, timeout: Optional[float] = None) -> List[Published]:
        """Publishes frames, all or none, as `fanfare.Client.publish_batch` does."""
        request, safe = batch_request(frames)
        return published_batch(await self._call("PublishBatch", request, safe, timeout))

    async def close_stream(
        self,
        channel: str,
        scope: str = "",
        *,
        expected_epoch: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Position:
        """Closes a stream, as `fanfare.Client.close_stream` does."""
        request, safe = close_request(channel, scope, expected_epoch)
        return position_of((await self._call("CloseStream", request, safe, timeout)).last)

    def subscribe(self, channel: str, scope: str = "", start: Start = Start.oldest()) -> Subscription:
        """Subscribes to a stream, as `fanfare.Client.subscribe` does."""
        if self._closed:
            raise ValueError("the client is closed")
        subscription = Subscription(self._targets, self._resumption(channel, scope, start))
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        """Ends the client's subscriptions and connections."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
        for connection in self._targets.connections():
            await connection.channel.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, method: str, request: Any, safe: bool, timeout: Optional[float]) -> Any:
        attempts = self._attempts(safe, timeout)
        while True:
            number, connection = self._targets.current()
            try:
                return await getattr(connection.stub, method)(request, timeout=attempts.timeout())
            except grpc.RpcError as failed:
                error = error_of(failed)
                if helps_elsewhere(error):
                    self._targets.failed(number)
                delay = attempts.failed(error)
            await asyncio.sleep(delay)
            if self._closed:
                raise error


class Subscription(SubscriptionBase[_Connection]):
    """An asynchronous iterator of a stream's events, made by `Client.subscribe`.

    It is `fanfare.Subscription` for asyncio. A wait for the next event may be
    cancelled, by ``asyncio.wait_for`` for example: the next one goes on where it was.
    One task at a time iterates. `close` may be called by any.
    """

    def __init__(self, targets: Targets[_Connection], resumption: Resumption) -> None:
        super().__init__(targets, resumption)
        self._closing = asyncio.Event()
        self._read: Optional[asyncio.Future[Any]] = None
        self._begin()

    def close(self) -> None:
        """Ends the subscription, and an iteration that waits."""
        self._closing.set()
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._closing.is_set():
            event = self._next_ready()
            if event is not None:
                return event
            if self._over:
                break
            if self._call is not None:
                await self._receive()
            elif not await self._closes_before(self._resume_at):
                self._begin()
        raise StopAsyncIteration

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _closes_before(self, moment: float) -> bool:
        try:
            await asyncio.wait_for(self._closing.wait(), moment - time.monotonic())
        except asyncio.TimeoutError:
            return False
        return True

    def _begin(self) -> None:
        self._read = None
        self._number, connection = self._targets.current()
        self._call = connection.stub.Subscribe(self._resumption.request())

    async def _receive(self) -> None:
        if self._read is None:
            self._read = asyncio.ensure_future(self._call.read())
        try:
            # grpc ends the call of a read that is cancelled, so the read goes on when
            # the wait for it is.
            response = await asyncio.shield(self._read)
        except asyncio.CancelledError:
            if not self._read.cancelled():
                raise
            if not self._closing.is_set():
                self._end(FanfareError(grpc.StatusCode.CANCELLED, "the call was cancelled"))
        except grpc.RpcError as failed:
            self._end(error_of(failed))
        else:
            self._read = None
            if response is grpc.aio.EOF:
                self._end(None)
            else:
                self._take(response)
