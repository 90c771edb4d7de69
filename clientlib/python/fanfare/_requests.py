"""Requests, and what is read from their answers."""

from __future__ import annotations

import secrets
from typing import Any, Iterable, List, Optional, Tuple

from .frames import NewFrame, Position, Published, Start, position_of
from .v1 import fanfare_pb2 as pb


def publish_request(frame: NewFrame) -> Tuple[pb.PublishRequest, bool]:
    """Returns the request, and whether it is safe to repeat."""
    message = _new_frame(frame)
    return pb.PublishRequest(frame=message), message.idempotency_key != ""


def batch_request(frames: Iterable[NewFrame]) -> Tuple[pb.PublishBatchRequest, bool]:
    """Returns the request, and whether it is safe to repeat.

    A batch of which all durable frames were published before does nothing, also with
    its ephemeral ones.
    """
    messages = [_new_frame(frame) for frame in frames]
    durable = [message for message in messages if not message.ephemeral]
    safe = bool(durable) and all(message.idempotency_key for message in durable)
    return pb.PublishBatchRequest(frames=messages), safe


def _new_frame(frame: NewFrame) -> pb.NewFrame:
    key = frame.idempotency_key
    if key is None:
        key = "" if frame.ephemeral else secrets.token_hex(16)
    return pb.NewFrame(
        channel=frame.channel,
        scope=frame.scope,
        payload=frame.payload,
        content_type=frame.content_type,
        event_type=frame.event_type,
        headers=frame.headers,
        idempotency_key=key,
        expected_sequence=frame.expected_sequence,
        expected_epoch=frame.expected_epoch,
        ephemeral=frame.ephemeral,
    )


def close_request(channel: str, scope: str, expected_epoch: Optional[int]) -> Tuple[pb.CloseStreamRequest, bool]:
    """Returns the request, and whether it is safe to repeat: only if it cannot close
    the numbering after."""
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
