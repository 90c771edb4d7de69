"""The client for asyncio. It does what `fanfare.Client` does, in the same words.

    async with fanfare.aio.Client("127.0.0.1:7420") as client:
        await client.publish("chat/messages", "room-1", b"hello")
        async with client.subscribe("chat/messages", "room-1") as subscription:
            async for event in subscription:
                ...
"""

from __future__ import annotations

import asyncio
import inspect
import time
import weakref
from typing import Any, AsyncIterator, Awaitable, Callable, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union, cast

import grpc
import grpc.aio

from ._access import Access, Metadata, expires_soon, no_token
from ._base import ClientBase, SubscriptionBase, nothing_came
from ._requests import batch_request, close_request, publish_request, published, published_batch
from ._resumption import Resumption
from ._targets import CHANNEL_OPTIONS, ClientClosed, Targets
from .errors import FanfareError, error_of, helps_elsewhere
from .events import Event
from .frames import NewFrame, Position, Published, Start, position_of
from .v1 import fanfare_pb2_grpc as rpc


class _Connection(NamedTuple):
    channel: grpc.aio.Channel
    stub: rpc.FanfareServiceStub


class Client(ClientBase[_Connection]):
    """`fanfare.Client` for asyncio: its arguments and methods are the same, and those
    that wait are coroutines; ``token`` may be one, or not. It belongs to the event loop
    that it is first used in."""

    def __init__(
        self,
        targets: Union[str, Sequence[str]],
        *,
        credentials: Optional[grpc.ChannelCredentials] = None,
        options: Sequence[Tuple[str, Any]] = (),
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        idle_timeout: float = 60.0,
        backoff: Tuple[float, float] = (0.1, 5.0),
        token: Optional[Callable[[bool], Union[str, Awaitable[str]]]] = None,
    ) -> None:
        all_options = (*options, *CHANNEL_OPTIONS)

        def connect(target: str) -> _Connection:
            if credentials is None:
                channel = grpc.aio.insecure_channel(target, all_options)
            else:
                channel = grpc.aio.secure_channel(target, credentials, all_options)
            return _Connection(channel, rpc.FanfareServiceStub(channel))

        super().__init__(targets, connect, timeout, attempt_timeout, idle_timeout, backoff, token is not None)
        self._token = token
        # One call of the source at a time. Made in the event loop.
        self._token_turn: Optional[asyncio.Lock] = None
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
            raise ClientClosed
        subscription = Subscription(self, self._resumption(channel, scope, start), self._access())
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        """Ends the client's subscriptions, calls and connections, as
        `fanfare.Client.close` does."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
        for connection in self._targets.close():
            await connection.channel.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, method: str, request: Any, safe: bool, timeout: Optional[float]) -> Any:
        attempts, access = self._attempts(safe, timeout), self._access()
        error: Optional[FanfareError] = None
        while True:
            try:
                metadata = await self._metadata(access)
                number, connection = self._targets.current()
                call = getattr(connection.stub, method)(request, timeout=attempts.timeout(), metadata=metadata)
                return await _answer(call)
            except FanfareError as unsent:
                raise attempts.given_up(unsent)
            except grpc.RpcError as failed:
                error = error_of(failed)
            except (_Ended, ClientClosed) as ended:
                if isinstance(ended, _Ended):
                    error = FanfareError(grpc.StatusCode.CANCELLED, "the client was closed")
                elif error is None:
                    raise
                attempts.failed(error)
                raise attempts.given_up(error)
            if access.renews(error):
                continue
            if helps_elsewhere(error):
                self._targets.failed(number)
            await asyncio.sleep(attempts.failed(error))

    async def _metadata(self, access: Access) -> Metadata:
        """Returns what shows the server who calls. Raises a `FanfareError` if the
        source of tokens has none."""
        if self._token is None:
            return access.metadata(None)
        if self._token_turn is None:
            self._token_turn = asyncio.Lock()
        async with self._token_turn:
            token = self._token_cache.known(access.refused)
            if token is None:
                try:
                    token = await self._fetch(bool(access.refused))
                    if not access.refused and expires_soon(token):
                        token = await self._fetch(True)
                    self._token_cache.take(token)
                except Exception as cause:
                    raise no_token(cause) from cause
        return access.metadata(token)

    async def _fetch(self, refresh: bool) -> str:
        assert self._token is not None
        token: Any = self._token(refresh)
        if inspect.isawaitable(token):
            token = await token
        return cast(str, token)


class _Ended(Exception):
    """A call was cancelled, and not by who waits for it."""


async def _answer(call: Any) -> Any:
    """Waits for the answer of a call. To await the call itself would cancel its caller
    when the client is closed, which cancels the call: the two look the same there."""
    answer = asyncio.ensure_future(call)
    try:
        await asyncio.wait((answer,))
    except asyncio.CancelledError:
        answer.cancel()
        raise
    if answer.cancelled():
        raise _Ended
    return answer.result()


class Subscription(SubscriptionBase[_Connection]):
    """An asynchronous iterator of a stream's events, made by `Client.subscribe`.

    It is `fanfare.Subscription` for asyncio. A wait for the next event may be
    cancelled, by ``asyncio.wait_for`` for example: the next one goes on where it was.
    One task at a time iterates. `close` may be called by any.
    """

    def __init__(self, client: Client, resumption: Resumption, access: Access) -> None:
        super().__init__(client._targets, resumption, access)
        self._client = client
        self._closing = asyncio.Event()
        self._read: Optional[asyncio.Future[Any]] = None
        # True if the read was ended since nothing came.
        self._late = False
        if client._token is None:  # else with the first wait
            self._call_with(access.metadata(None))

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
                await self._begin()
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

    async def _begin(self) -> None:
        try:
            metadata = await self._client._metadata(self._access)
        except FanfareError as error:
            self._resumption.request()  # the call that is not made
            self._rest(error)
            return
        if not self._closing.is_set():
            self._call_with(metadata)

    def _call_with(self, metadata: Metadata) -> None:
        self._read, self._late = None, False
        self._number, connection = self._targets.current()
        self._call = connection.stub.Subscribe(self._resumption.request(), metadata=metadata)

    async def _receive(self) -> None:
        if self._read is None:
            self._read = asyncio.ensure_future(self._call.read())
            self._watch(self._read)
        # grpc ends the call of a read that is cancelled, so the read goes on when the
        # wait for it is.
        await asyncio.wait((self._read,))
        read, self._read = self._read, None
        if read.cancelled():
            if self._late:
                self._end(nothing_came(self._client._idle_timeout))
            elif not self._closing.is_set():
                self._end(FanfareError(grpc.StatusCode.CANCELLED, "the call was cancelled"))
            return
        try:
            response = read.result()
        except grpc.RpcError as failed:
            self._end(error_of(failed))
            return
        if response is grpc.aio.EOF:
            self._end(None)
        else:
            self._take(response)

    def _watch(self, read: asyncio.Future[Any]) -> None:
        """Ends a read, and so its call, if it lasts too long, also between the waits for
        it."""
        loop, limit = asyncio.get_running_loop(), self._client._idle_timeout

        def late() -> None:
            # Not at once: the event loop may have been busy, and what came not been read.
            if not read.done():
                loop.call_later(min(1.0, limit / 10), end)

        def end() -> None:
            self._late = read.cancel()

        def done(_: Any) -> None:
            timer.cancel()
            if not read.cancelled():
                read.exception()  # or asyncio complains of one that nobody waits for any more

        timer = loop.call_later(limit, late)
        read.add_done_callback(done)
