"""Real servers for tests, on the embedded store, and what cuts the way to them."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from typing import IO, Callable, List, Optional

import grpc

from fanfare.v1 import fanfare_pb2 as pb
from fanfare.v1 import fanfare_pb2_grpc as rpc

PATIENCE = 20.0


def program() -> str:
    path = os.environ.get("FANFARE_BIN", "")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"FANFARE_BIN must name the fanfare program, and is {path!r}: run test.sh")
    return path


def eventually(what: str, condition: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """A server with a data directory of its own. It keeps its address over restarts."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._directory = tempfile.TemporaryDirectory(prefix="fanfare-python-")
        self.port = free_port()
        self._process: Optional[subprocess.Popen[str]] = None
        self._log: Optional[threading.Thread] = None
        self.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FANFARE_")}
        command = [program(), "serve", "--data-dir", self._directory.name, "--grpc", self.target]
        self._process = subprocess.Popen(
            [*command, "--http", "off", "--drain-delay", "0s", *self._flags],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        log: List[str] = []
        for line in self._process.stdout:
            log.append(line)
            if line.startswith("serving on"):
                # Its log goes on, and must not fill the pipe.
                self._log = threading.Thread(target=_drain, args=(self._process.stdout,))
                self._log.start()
                return
        raise AssertionError(f"the server did not start: {''.join(log)}")

    def end(self) -> None:
        """Ends the server as a crash does."""
        assert self._process is not None
        self._process.kill()
        self.await_end()

    def terminate(self) -> None:
        """Has the server end as at a deployment."""
        assert self._process is not None
        self._process.terminate()

    def await_end(self) -> None:
        assert self._process is not None and self._log is not None
        self._process.wait(PATIENCE)
        self._log.join(PATIENCE)
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.end()
        self._directory.cleanup()


def _drain(log: IO[str]) -> None:
    with log:
        for _ in log:
            pass


def stream(server: Server, channel: str, scope: str) -> pb.Stream:
    """Returns what a server tells of a stream."""
    with grpc.insecure_channel(server.target) as connection:
        request = pb.GetStreamRequest(channel=channel, scope=scope)
        described: pb.Stream = rpc.FanfareServiceStub(connection).GetStream(request).stream
        return described


class Proxy:
    """Passes connections on to a server, until they are cut. While ``deaf`` is true
    what the server answers is dropped: requests arrive, and their answers do not."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.deaf = False
        self.accepted = 0
        self._lock = threading.Lock()
        self._sockets: List[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Cuts the connections there are."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end was faster

    def close(self) -> None:
        # Closing alone would leave accept waiting.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self.accepted += 1
                self._sockets += [client, server]
            for arguments in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass, args=arguments)
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                if not (answers and self.deaf):
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            for sock in (source, sink):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            source.close()
