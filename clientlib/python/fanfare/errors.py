"""Errors, with the reasons that the server gives."""

from __future__ import annotations

from typing import Dict, Optional, Type

import grpc

from ._details import Details, details_of
from .frames import Position

OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"


class FanfareError(Exception):
    """A call failed.

    ``code`` is the status code. ``reason`` is a name of ErrorReason in the protocol,
    such as "STORE_UNAVAILABLE", or empty if the error is not the server's own but, say,
    the network's. ``field`` is the path of the field that is outside its limit, as in
    "frames[3].payload", and ``position`` the position that the error speaks of, if any.
    ``retry_in`` is after how many seconds the server suggests to try again, if that
    helps.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        field: str = "",
        position: Optional[Position] = None,
        retry_in: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.field = field
        self.position = position
        self.retry_in = retry_in

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.code.name}{reason}: {self.message}"


class InvalidField(FanfareError):
    """A field is outside its limit; ``field`` names it."""


class KeyConflict(FanfareError):
    """The idempotency key was used for another content, stored at ``position``."""


class ExpectationFailed(FanfareError):
    """The stream's newest position is not the expected one but ``position``."""


class OutcomeUnknown(FanfareError):
    """What was asked for may or may not have been done. A publish with an idempotency
    key can be repeated with the same key; of another one, look."""


_CLASSES: Dict[str, Type[FanfareError]] = {
    "INVALID_FIELD": InvalidField,
    "KEY_CONFLICT": KeyConflict,
    "EXPECTATION_FAILED": ExpectationFailed,
    OUTCOME_UNKNOWN: OutcomeUnknown,
}


# How grpc's messages begin of calls that reached no server.
_NEVER_SENT = ("failed to connect to all addresses", "connections to all backends failing", "DNS resolution failed")


def error_of(error: grpc.RpcError) -> FanfareError:
    """Returns what grpc raised as an error of this package."""
    code: grpc.StatusCode = error.code()
    message: str = error.details() or ""
    metadata = error.trailing_metadata() or ()
    details = details_of(metadata)
    if code is grpc.StatusCode.UNAVAILABLE and not details.reason and not message.startswith(_NEVER_SENT):
        # Why a connection is not there any more, such as a peer's GOAWAY, is there alone.
        message = f"{message} [{error.debug_error_string()}]"
    return _CLASSES.get(details.reason, FanfareError)(
        code,
        message,
        reason=details.reason,
        field=details.field,
        position=_position(details),
        retry_in=details.retry_in,
    )


def outcome_unknown(cause: FanfareError) -> OutcomeUnknown:
    """Says that a call may have been executed whose answer did not come."""
    return OutcomeUnknown(
        grpc.StatusCode.UNKNOWN,
        f"the answer did not come, what was asked for may have been done: {cause}",
        reason=OUTCOME_UNKNOWN,
    )


def never_sent(error: FanfareError) -> bool:
    """Whether the call certainly reached no server. grpc tells it in words alone; what
    is not recognised counts as sent."""
    return error.code is grpc.StatusCode.UNAVAILABLE and not error.reason and error.message.startswith(_NEVER_SENT)


def helps_elsewhere(error: FanfareError) -> bool:
    """Whether another replica may do what this one did not."""
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return error.reason != "MAX_STREAM_AGE"
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return error.reason in ("LIMIT_REACHED", "PUBLISH_QUEUE_FULL")
    return not error.reason and error.code in (
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
    )


_FINAL = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.ALREADY_EXISTS,
    )
)


def ends_subscription(error: FanfareError) -> bool:
    """Whether subscribing again would be refused as well."""
    return error.code in _FINAL or (error.reason == "LIMIT_REACHED" and error.retry_in is None)


def _position(details: Details) -> Optional[Position]:
    try:
        return Position.parse(details.position)
    except ValueError:
        return None
