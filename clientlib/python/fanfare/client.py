"""The client for programs with threads."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import grpc

from ._base import ClientBase, SubscriptionBase
from ._requests import batch_request, close_request, publish_request, published, published_batch
from ._resumption import Resumption
from ._targets import CHANNEL_OPTIONS, Targets
from .errors import error_of, helps_elsewhere
from .events import Event
from .frames import NewFrame, Position, Published, Start, position_of
from .v1 import fanfare_pb2_grpc as rpc


class _Connection(NamedTuple):
    channel: grpc.Channel
    stub: rpc.FanfareServiceStub


@contextlib.contextmanager
def _connecting(connection: _Connection) -> Iterator[None]:
    """Has a connection made meanwhile. grpc gets on with one only while a call waits
    for it, else every 5 seconds, and calls fail at once until then. Whether the server
    is well is of no interest."""
    check = connection.channel.unary_unary("/grpc.health.v1.Health/Check")
    call = check.future(b"", wait_for_ready=True)
    try:
        yield
    finally:
        call.cancel()


class Client(ClientBase[_Connection]):
    """Publishes to and subscribes at the servers of one store.

    ``targets`` is one server or several, in gRPC's form: "host:port" or
    "unix:///path". All calls use one of them until it fails; then they use the next.
    With ``credentials`` (such as ``grpc.ssl_channel_credentials()``) the connections
    are encrypted. ``options`` are gRPC channel options, beside and before those that
    the client sets.

    A call that publishes ends within ``timeout`` seconds, each of its attempts within
    ``attempt_timeout``. ``backoff`` is the shortest and the longest bound, in seconds,
    of the random time between attempts of a call or a subscription.

    Threads may use a client at the same time. A process that forks makes its clients
    after that.
    """

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
                channel = grpc.insecure_channel(target, all_options)
            else:
                channel = grpc.secure_channel(target, credentials, all_options)
            return _Connection(channel, rpc.FanfareServiceStub(channel))

        super().__init__(targets, connect, timeout, attempt_timeout, backoff)
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards _subscriptions, and orders closing
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    def publish(
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
        """Publishes a frame and returns its position once it is stored.

        The arguments are those of `NewFrame`. A durable frame is given an idempotency
        key, so that the call is repeated where that helps, and stores the frame once.
        An ephemeral one, or one with ``idempotency_key=""``, is sent again only if it
        certainly was not published.

        Raises `ExpectationFailed`, `KeyConflict`, `InvalidField`, `OutcomeUnknown` or
        another `FanfareError`. In all cases but OutcomeUnknown nothing was published.
        """
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
        return published(self._call("Publish", request, safe, timeout))

    def publish_batch(self, frames: Iterable[NewFrame], *, timeout: Optional[float] = None) -> List[Published]:
        """Publishes frames of any streams, all or none, in one transaction; at most
        1,000, together at most 4 MiB. Frames of one stream keep their order.

        Repeated and refused as by `publish`.
        """
        request, safe = batch_request(frames)
        return published_batch(self._call("PublishBatch", request, safe, timeout))

    def close_stream(
        self,
        channel: str,
        scope: str = "",
        *,
        expected_epoch: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Position:
        """Closes a stream and returns its last position. Its subscribers get what came
        before, then `Closed`. The next publish starts a new numbering.

        With ``expected_epoch``, only that numbering is closed (otherwise:
        `ExpectationFailed`), and the call is repeated where that helps.
        """
        request, safe = close_request(channel, scope, expected_epoch)
        return position_of(self._call("CloseStream", request, safe, timeout).last)

    def subscribe(self, channel: str, scope: str = "", start: Start = Start.oldest()) -> Subscription:
        """Subscribes to a stream, which need not exist yet, and returns at once; errors
        come from the subscription's iteration."""
        with self._lock:
            if self._closing.is_set():
                raise ValueError("the client is closed")
            subscription = Subscription(self._targets, self._resumption(channel, scope, start))
            self._subscriptions.add(subscription)
            return subscription

    def close(self) -> None:
        """Ends the client's subscriptions and connections."""
        with self._lock:
            self._closing.set()
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()
        for connection in self._targets.connections():
            connection.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, request: Any, safe: bool, timeout: Optional[float]) -> Any:
        attempts = self._attempts(safe, timeout)
        while True:
            number, connection = self._targets.current()
            try:
                return getattr(connection.stub, method)(request, timeout=attempts.timeout())
            except grpc.RpcError as failed:
                error = error_of(failed)
                if helps_elsewhere(error):
                    self._targets.failed(number)
                delay = attempts.failed(error)
            with _connecting(self._targets.current()[1]):
                if self._closing.wait(delay):
                    raise error


class Subscription(SubscriptionBase[_Connection]):
    """An iterator of a stream's events, made by `Client.subscribe`.

    Iterating blocks until something comes, and ends when the stream is closed or
    `close` is called. It raises a `FanfareError` only if subscribing again would be
    refused as well; everything else is an `Interrupted`, after which it goes on. What
    is not read waits at the server.

    One thread at a time iterates. `close` may be called by any.
    """

    def __init__(self, targets: Targets[_Connection], resumption: Resumption) -> None:
        super().__init__(targets, resumption)
        self._closing = threading.Event()
        self._lock = threading.Lock()  # orders beginning a call and closing
        self._begin()

    def close(self) -> None:
        """Ends the subscription, and an iteration that waits."""
        with self._lock:
            self._closing.set()
            call = self._call
        if call is not None:
            call.cancel()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while not self._closing.is_set():
            event = self._next_ready()
            if event is not None:
                return event
            if self._over:
                break
            if self._call is not None or self._begin():
                self._receive()
        raise StopIteration

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> bool:
        """Begins a call when it is time to, unless the subscription was closed."""
        if self._resume_at:
            with _connecting(self._targets.current()[1]):
                self._closing.wait(self._resume_at - time.monotonic())
        with self._lock:
            if self._closing.is_set():
                return False
            self._number, connection = self._targets.current()
            self._call = connection.stub.Subscribe(self._resumption.request())
            return True

    def _receive(self) -> None:
        try:
            response = next(self._call)
        except StopIteration:
            self._end(None)
        except grpc.RpcError as failed:
            if not self._closing.is_set():
                self._end(error_of(failed))
        else:
            self._take(response)
