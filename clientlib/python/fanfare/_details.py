"""Reads the details of a status: google.rpc.Status with ErrorInfo, RetryInfo and
BadRequest, of which only what Fanfare uses is described here. The names are this
package's own, so that they never meet those of googleapis-common-protos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Optional, Tuple, Union

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError

_DOMAIN = "fanfare.dev"
_TRAILER = "grpc-status-details-bin"

_F = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "fanfare.status"

# Message: fields by number, name, type, repeated.
_MESSAGES = {
    "Status": ((3, "details", "Detail", True),),
    "Detail": ((1, "type_url", _F.TYPE_STRING, False), (2, "value", _F.TYPE_BYTES, False)),
    "ErrorInfo": (
        (1, "reason", _F.TYPE_STRING, False),
        (2, "domain", _F.TYPE_STRING, False),
        (3, "metadata", "Entry", True),
    ),
    "Entry": ((1, "key", _F.TYPE_STRING, False), (2, "value", _F.TYPE_STRING, False)),
    "RetryInfo": ((1, "delay", "Delay", False),),
    "Delay": ((1, "seconds", _F.TYPE_INT64, False), (2, "nanos", _F.TYPE_INT32, False)),
    "BadRequest": ((1, "violations", "Violation", True),),
    "Violation": ((1, "field", _F.TYPE_STRING, False),),
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="fanfare/status.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            described = message.field.add(
                name=field, number=number, label=_F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            )
            if isinstance(kind, str):
                described.type, described.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                described.type = kind
    return file


_classes: Any = message_factory.GetMessages([_described()])


@dataclass
class Details:
    """What the details of a status tell."""

    reason: str = ""
    field: str = ""
    position: str = ""
    retry_in: Optional[float] = None


def details_of(metadata: Iterable[Tuple[str, Union[str, bytes]]]) -> Details:
    """Returns what the trailers of a call tell; nothing, if they are not Fanfare's."""
    details = Details()
    for key, value in metadata:
        if key != _TRAILER or not isinstance(value, bytes):
            continue
        try:
            for detail in _parsed("Status", value).details:
                _add(details, detail.type_url.rpartition("/")[2], detail.value)
        except DecodeError:
            continue
    return details


def _add(details: Details, name: str, value: bytes) -> None:
    if name == "google.rpc.ErrorInfo":
        info = _parsed("ErrorInfo", value)
        if info.domain == _DOMAIN:
            details.reason = info.reason
            told = {entry.key: entry.value for entry in info.metadata}
            details.position = told.get("head", told.get("position", ""))
    elif name == "google.rpc.RetryInfo":
        delay = _parsed("RetryInfo", value).delay
        details.retry_in = max(0.0, delay.seconds + delay.nanos / 1e9)
    elif name == "google.rpc.BadRequest":
        for violation in _parsed("BadRequest", value).violations[:1]:
            details.field = violation.field


def _parsed(name: str, data: bytes) -> Any:
    return _classes[f"{_PACKAGE}.{name}"].FromString(data)
