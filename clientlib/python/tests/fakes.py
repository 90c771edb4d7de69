"""Servers that do what no real one can be brought to."""

from __future__ import annotations

import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from fanfare._details import _parsed
from fanfare.v1 import fanfare_pb2_grpc as rpc


def serve(test: unittest.TestCase, servicer: rpc.FanfareServiceServicer) -> str:
    """Serves until the test ends, and returns the target."""
    server = grpc.server(ThreadPoolExecutor(16))
    rpc.add_FanfareServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    test.addCleanup(lambda: server.stop(None).wait())
    return f"127.0.0.1:{port}"


def refuse(context: Any, code: grpc.StatusCode, reason: str) -> Any:
    """Ends a call as a server does."""
    info = _parsed("ErrorInfo", b"")
    info.reason, info.domain = reason, "fanfare.dev"
    status = _parsed("Status", b"")
    status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, "as the test says")
