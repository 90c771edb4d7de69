"""The servers that a client may use."""

from __future__ import annotations

import random
import threading
from typing import Any, Callable, Dict, Generic, List, Sequence, Tuple, TypeVar, Union

# A connection that went silent is found within 20 s, before a publish gives up, and one
# that cannot be made is given up in seconds, for another target. The server allows a
# ping each 10 s.
CHANNEL_OPTIONS: Tuple[Tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Or else a new client waits for the next attempt of another to connect.
    ("grpc.use_local_subchannel_pool", 1),
    # How large a frame may be is the server's decision.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

Connection = TypeVar("Connection")


class ClientClosed(ValueError):
    """The client was used after it was closed."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class Targets(Generic[Connection]):
    """A connection to each target, made when it is first used. All calls use one of
    them, chosen at random so that clients spread, until it fails one: then all use the
    next. Threads may use it at the same time."""

    def __init__(self, targets: Union[str, Sequence[str]], connect: Callable[[str], Connection]) -> None:
        self._targets = [targets] if isinstance(targets, str) else list(targets)
        if not self._targets:
            raise ValueError("a client needs at least one target, as in Client('127.0.0.1:7420')")
        self._connect = connect
        self._lock = threading.Lock()  # guards what follows
        self._connections: Dict[int, Connection] = {}
        self._closed = False
        self._current = random.randrange(len(self._targets))

    def current(self) -> Tuple[int, Connection]:
        """Returns the connection to use, and its target's number."""
        with self._lock:
            if self._closed:
                raise ClientClosed
            number = self._current
            if number not in self._connections:
                self._connections[number] = self._connect(self._targets[number])
            return number, self._connections[number]

    def failed(self, number: int) -> None:
        """Has the calls to come use another target than this one."""
        with self._lock:
            if number == self._current:
                self._current = (number + 1) % len(self._targets)

    def close(self) -> List[Connection]:
        """Makes no more connections, and returns those there are, for the caller to
        close."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
            return connections
