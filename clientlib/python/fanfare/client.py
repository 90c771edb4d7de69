"""The client for programs with threads."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import grpc

from ._access import Access, Metadata, expires_soon, no_token
from ._base import ClientBase, SubscriptionBase, nothing_came
from ._idle import IdleWatch
from ._requests import batch_request, close_request, publish_request, published, published_batch
from ._resumption import Resumption
from ._targets import CHANNEL_OPTIONS, ClientClosed, Targets
from .errors import FanfareError, error_of, helps_elsewhere
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
    try:
        call = check.future(b"", wait_for_ready=True)
    except ValueError:  # the client was closed meanwhile, and its channels with it
        call = None
    try:
        yield
    finally:
        if call is not None:
            call.cancel()


class Client(ClientBase[_Connection]):
    """Publishes to and subscribes at the servers of one store.

    ``targets`` is one server or several, in gRPC's form: "host:port" or
    "unix:///path". All calls use one of them until it fails; then they use the next.
    With ``credentials`` (such as ``grpc.ssl_channel_credentials()``) the connections
    are encrypted. ``options`` are gRPC channel options, beside and before those that
    the client sets.

    A call that publishes ends within ``timeout`` seconds; an attempt that gets no answer
    within ``attempt_timeout`` is followed by another one, if that is safe. ``backoff`` is
    the shortest and the longest bound, in seconds, of the random time between attempts
    of a call or a subscription. A subscription to which nothing came for
    ``idle_timeout`` seconds, not even the heartbeat that servers send every 15, takes
    its call for dead and resumes; that counts while it is read.

    ``token`` returns a bearer token, which each call is sent with. It is called before
    each call, one call at a time, so it should keep its token. Its argument is true if
    the server refused the one before with UNAUTHENTICATED, as it does when that has
    expired, or if it is a JSON Web Token that expires within ten seconds: then a new
    one is wanted. If that is refused as well the error is final. What it raises ends a
    publish; a subscription tries again later.

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
        idle_timeout: float = 60.0,
        backoff: Tuple[float, float] = (0.1, 5.0),
        token: Optional[Callable[[bool], str]] = None,
    ) -> None:
        all_options = (*options, *CHANNEL_OPTIONS)

        def connect(target: str) -> _Connection:
            if credentials is None:
                channel = grpc.insecure_channel(target, all_options)
            else:
                channel = grpc.secure_channel(target, credentials, all_options)
            return _Connection(channel, rpc.FanfareServiceStub(channel))

        super().__init__(targets, connect, timeout, attempt_timeout, idle_timeout, backoff, token is not None)
        self._token = token
        self._token_turn = threading.Lock()  # one call of the source at a time
        self._idle = IdleWatch(idle_timeout)
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
        """Subscribes to a stream, which need not exist yet, and returns at once, or when
        the source of tokens has; errors come from the subscription's iteration."""
        subscription = Subscription(self, self._resumption(channel, scope, start), self._access())
        with self._lock:
            if self._closing.is_set():
                raise ClientClosed
            self._subscriptions.add(subscription)
        subscription._begin()
        return subscription

    def close(self) -> None:
        """Ends the client's subscriptions, calls and connections. A publish under way
        raises `OutcomeUnknown` if the frame may have been published."""
        with self._lock:
            self._closing.set()
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()
        self._idle.close()
        for connection in self._targets.close():
            connection.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, request: Any, safe: bool, timeout: Optional[float]) -> Any:
        attempts, access = self._attempts(safe, timeout), self._access()
        error: Optional[FanfareError] = None
        while True:
            try:
                metadata = self._metadata(access)
                number, connection = self._targets.current()
                return getattr(connection.stub, method)(request, timeout=attempts.timeout(), metadata=metadata)
            except FanfareError as unsent:
                raise attempts.given_up(unsent)
            except grpc.RpcError as failed:
                error = error_of(failed)
            except ValueError:
                # grpc's, too: the client was closed, and its channels with it.
                if not self._closing.is_set():
                    raise
                raise ClientClosed() if error is None else attempts.given_up(error)
            if access.renews(error):
                continue
            if helps_elsewhere(error):
                self._targets.failed(number)
            self._pause(attempts.failed(error))
            if self._closing.is_set():
                raise attempts.given_up(error)

    def _pause(self, seconds: float) -> None:
        """Waits before the next attempt, unless the client is closed."""
        with contextlib.suppress(ClientClosed), _connecting(self._targets.current()[1]):
            self._closing.wait(seconds)

    def _metadata(self, access: Access) -> Metadata:
        """Returns what shows the server who calls. Raises a `FanfareError` if the
        source of tokens has none."""
        if self._token is None:
            return access.metadata(None)
        with self._token_turn:
            token = self._token_cache.known(access.refused)
            if token is None:
                try:
                    token = self._token(bool(access.refused))
                    if not access.refused and expires_soon(token):
                        token = self._token(True)
                    self._token_cache.take(token)
                except Exception as cause:
                    raise no_token(cause) from cause
        return access.metadata(token)


class Subscription(SubscriptionBase[_Connection]):
    """An iterator of a stream's events, made by `Client.subscribe`.

    Iterating blocks until something comes, and ends when the stream is closed or
    `close` is called. It raises a `FanfareError` only if subscribing again would be
    refused as well; everything else is an `Interrupted`, after which it goes on. What
    is not read waits at the server.

    One thread at a time iterates. `close` may be called by any.
    """

    def __init__(self, client: Client, resumption: Resumption, access: Access) -> None:
        super().__init__(client._targets, resumption, access)
        self._client = client
        self._closing = threading.Event()
        self._lock = threading.Lock()  # orders beginning a call and closing

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
            if self._call is not None:
                self._receive()
            else:
                self._begin()
        raise StopIteration

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Begins a call when it is time to, unless the subscription was closed."""
        if self._resume_at:
            with contextlib.suppress(ClientClosed), _connecting(self._targets.current()[1]):
                self._closing.wait(self._resume_at - time.monotonic())
        if self._closing.is_set():
            return
        request = self._resumption.request()
        try:
            metadata = self._client._metadata(self._access)
        except FanfareError as error:
            self._rest(error)
            return
        with self._lock:
            if not self._closing.is_set():
                self._number, connection = self._targets.current()
                self._call = connection.stub.Subscribe(request, metadata=metadata)

    def _receive(self) -> None:
        idle, late = self._client._idle, False
        try:
            idle.begin(self._call)
            try:
                response = next(self._call)
            finally:
                late = idle.end(self._call)
        except StopIteration:
            self._end(None)
        except grpc.RpcError as failed:
            if not self._closing.is_set():
                self._end(nothing_came(idle.limit) if late else error_of(failed))
        else:
            self._take(response)
