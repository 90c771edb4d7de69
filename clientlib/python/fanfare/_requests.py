"""Requests, and what is read from their answers."""

from __future__ import annotations

import secrets
from typing import Any, Iterable, List, Mapping, Optional, Tuple

import grpc

from .errors import InvalidField
from .frames import NewFrame, Position, Published, Start, position_of
from .v1 import fanfare_pb2 as pb


def publish_request(frame: NewFrame) -> Tuple[pb.PublishRequest, bool]:
    """Returns the request, and whether it is safe to repeat."""
    message = _new_frame("frame", frame)
    return pb.PublishRequest(frame=message), message.idempotency_key != ""


def batch_request(frames: Iterable[NewFrame]) -> Tuple[pb.PublishBatchRequest, bool]:
    """Returns the request, and whether it is safe to repeat.

    A batch of which all durable frames were published before does nothing, also with
    its ephemeral ones.
    """
    messages = [_new_frame(f"frames[{number}]", frame) for number, frame in enumerate(frames)]
    durable = [message for message in messages if not message.ephemeral]
    safe = bool(durable) and all(message.idempotency_key for message in durable)
    return pb.PublishBatchRequest(frames=messages), safe


def _new_frame(path: str, frame: NewFrame) -> pb.NewFrame:
    _check(path, frame)
    key = frame.idempotency_key
    if key is None:
        key = "" if frame.ephemeral else secrets.token_hex(16)
    return pb.NewFrame(
        channel=frame.channel,
        scope=frame.scope,
        payload=bytes(frame.payload),
        content_type=frame.content_type,
        event_type=frame.event_type,
        headers=frame.headers,
        idempotency_key=key,
        expected_sequence=frame.expected_sequence,
        expected_epoch=frame.expected_epoch,
        ephemeral=frame.ephemeral,
    )


def _check(path: str, frame: NewFrame) -> None:
    """Refuses what protobuf refuses without naming the field, or takes for another value."""
    for name in ("channel", "scope", "content_type", "event_type"):
        _check_text(f"{path}.{name}", getattr(frame, name))
    if not isinstance(frame.payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"{path}.payload must be bytes, not {type(frame.payload).__name__}")
    if not isinstance(frame.headers, Mapping):
        raise TypeError(f"{path}.headers must be a mapping, not {type(frame.headers).__name__}")
    for name, value in frame.headers.items():
        _check_text(f"{path}.headers", name)
        _check_text(f"{path}.headers[{name!r}]", value)
    if frame.idempotency_key is not None:
        _check_text(f"{path}.idempotency_key", frame.idempotency_key)
    for name in ("expected_sequence", "expected_epoch"):
        number = getattr(frame, name)
        if number is not None:
            _check_number(f"{path}.{name}", number)


def check_stream(channel: str, scope: str) -> None:
    """Refuses what protobuf refuses without naming the field, or takes for empty."""
    _check_text("channel", channel)
    _check_text("scope", scope)


def _check_text(path: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{path} must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _invalid(path, "is not valid UTF-8") from None


def _check_number(path: str, value: object) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{path} must be an int, not {type(value).__name__}")
    if not 0 <= value < 1 << 63:
        raise _invalid(path, f"must be from 0 to 2^63-1, and is {value}")


def _invalid(path: str, message: str) -> InvalidField:
    return InvalidField(grpc.StatusCode.INVALID_ARGUMENT, f"{path} {message}", reason="INVALID_FIELD", field=path)


def close_request(channel: str, scope: str, expected_epoch: Optional[int]) -> Tuple[pb.CloseStreamRequest, bool]:
    """Returns the request, and whether it is safe to repeat: only if it cannot close
    the numbering after."""
    check_stream(channel, scope)
    if expected_epoch is not None:
        _check_number("expected_epoch", expected_epoch)
    request = pb.CloseStreamRequest(channel=channel, scope=scope, expected_epoch=expected_epoch)
    return request, expected_epoch is not None


def subscribe_request(channel: str, scope: str, start: Start) -> pb.SubscribeRequest:
    value: Any = start._value
    if isinstance(value, Position):
        value = pb.Position(epoch=value.epoch, sequence=value.sequence)
    return pb.SubscribeRequest(channel=channel, scope=scope, **{start._kind: value})


def published(answer: pb.PublishResponse) -> Published:
    position = position_of(answer.position) if answer.HasField("position") else None
    return Published(position, answer.duplicate)


def published_batch(answer: pb.PublishBatchResponse) -> List[Published]:
    return [published(result) for result in answer.results]
