from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
ERROR_REASON_DISK_FULL: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_EPHEMERAL_UNAVAILABLE: ErrorReason
ERROR_REASON_EXPECTATION_FAILED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_KEY_CONFLICT: ErrorReason
ERROR_REASON_LIMIT_REACHED: ErrorReason
ERROR_REASON_MAX_STREAM_AGE: ErrorReason
ERROR_REASON_NOTIFICATION_QUEUE_FULL: ErrorReason
ERROR_REASON_NOT_LISTENING: ErrorReason
ERROR_REASON_OUTCOME_UNKNOWN: ErrorReason
ERROR_REASON_PARTLY_DUPLICATE: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_PUBLISH_QUEUE_FULL: ErrorReason
ERROR_REASON_SEQUENCE_EXHAUSTED: ErrorReason
ERROR_REASON_SLOW_SUBSCRIBER: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_STREAM_NOT_FOUND: ErrorReason
ERROR_REASON_TOKEN_EXPIRED: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_UNSPECIFIED: ErrorReason
GAP_REASON_AHEAD: GapReason
GAP_REASON_EPHEMERAL_MAYBE_MISSED: GapReason
GAP_REASON_EPOCH_CHANGED: GapReason
GAP_REASON_TRIMMED: GapReason
GAP_REASON_UNSPECIFIED: GapReason

class Authenticated(_message.Message):
    __slots__ = ["expires"]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    expires: _timestamp_pb2.Timestamp
    def __init__(self, expires: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Bounds(_message.Message):
    __slots__ = ["backlog", "retention_age", "stream_retention"]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    RETENTION_AGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_RETENTION_FIELD_NUMBER: _ClassVar[int]
    backlog: int
    retention_age: _duration_pb2.Duration
    stream_retention: _duration_pb2.Duration
    def __init__(self, backlog: _Optional[int] = ..., retention_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., stream_retention: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CaughtUp(_message.Message):
    __slots__ = ["position"]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class CloseStreamRequest(_message.Message):
    __slots__ = ["channel", "expected_epoch", "scope"]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    expected_epoch: int
    scope: str
    def __init__(self, channel: _Optional[str] = ..., scope: _Optional[str] = ..., expected_epoch: _Optional[int] = ...) -> None: ...

class CloseStreamResponse(_message.Message):
    __slots__ = ["already_closed", "last"]
    ALREADY_CLOSED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    already_closed: bool
    last: Position
    def __init__(self, last: _Optional[_Union[Position, _Mapping]] = ..., already_closed: bool = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ["last"]
    LAST_FIELD_NUMBER: _ClassVar[int]
    last: Position
    def __init__(self, last: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Closing(_message.Message):
    __slots__ = ["resume_after", "retry_in"]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_FIELD_NUMBER: _ClassVar[int]
    resume_after: Position
    retry_in: _duration_pb2.Duration
    def __init__(self, resume_after: _Optional[_Union[Position, _Mapping]] = ..., retry_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ["error"]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ["code", "field", "message", "position", "reason", "retry_in"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_FIELD_NUMBER: _ClassVar[int]
    code: int
    field: str
    message: str
    position: Position
    reason: ErrorReason
    retry_in: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[_Union[ErrorReason, str]] = ..., field: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., retry_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ["content_type", "created", "ephemeral", "event_type", "headers", "payload", "position"]
    class HeadersEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    content_type: str
    created: _timestamp_pb2.Timestamp
    ephemeral: bool
    event_type: str
    headers: _containers.ScalarMap[str, str]
    payload: bytes
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., payload: _Optional[bytes] = ..., content_type: _Optional[str] = ..., event_type: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., created: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ephemeral: bool = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ["head", "oldest", "reason", "requested", "resume_after"]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    head: Position
    oldest: int
    reason: GapReason
    requested: Position
    resume_after: Position
    def __init__(self, reason: _Optional[_Union[GapReason, str]] = ..., requested: _Optional[_Union[Position, _Mapping]] = ..., oldest: _Optional[int] = ..., head: _Optional[_Union[Position, _Mapping]] = ..., resume_after: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ["channel", "prefix"]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    channel: str
    prefix: bool
    def __init__(self, channel: _Optional[str] = ..., prefix: bool = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ["effective", "policy"]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    effective: Bounds
    policy: Policy
    def __init__(self, policy: _Optional[_Union[Policy, _Mapping]] = ..., effective: _Optional[_Union[Bounds, _Mapping]] = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ["channel", "scope"]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    scope: str
    def __init__(self, channel: _Optional[str] = ..., scope: _Optional[str] = ...) -> None: ...

class GetStreamResponse(_message.Message):
    __slots__ = ["stream"]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ["built_in", "policies"]
    BUILT_IN_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    built_in: Bounds
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ..., built_in: _Optional[_Union[Bounds, _Mapping]] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ["channel", "page_size", "page_token"]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channel: str
    page_size: int
    page_token: str
    def __init__(self, channel: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ["next_page_token", "streams"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class NewFrame(_message.Message):
    __slots__ = ["channel", "content_type", "ephemeral", "event_type", "expected_epoch", "expected_sequence", "headers", "idempotency_key", "payload", "scope"]
    class HeadersEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    content_type: str
    ephemeral: bool
    event_type: str
    expected_epoch: int
    expected_sequence: int
    headers: _containers.ScalarMap[str, str]
    idempotency_key: str
    payload: bytes
    scope: str
    def __init__(self, channel: _Optional[str] = ..., scope: _Optional[str] = ..., payload: _Optional[bytes] = ..., content_type: _Optional[str] = ..., event_type: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., idempotency_key: _Optional[str] = ..., expected_sequence: _Optional[int] = ..., expected_epoch: _Optional[int] = ..., ephemeral: bool = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ["backlog", "channel", "prefix", "retention_age", "stream_retention"]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    RETENTION_AGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_RETENTION_FIELD_NUMBER: _ClassVar[int]
    backlog: int
    channel: str
    prefix: bool
    retention_age: _duration_pb2.Duration
    stream_retention: _duration_pb2.Duration
    def __init__(self, channel: _Optional[str] = ..., prefix: bool = ..., backlog: _Optional[int] = ..., retention_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., stream_retention: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ["epoch", "sequence"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ["position"]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class PublishBatchRequest(_message.Message):
    __slots__ = ["frames"]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[NewFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[NewFrame, _Mapping]]] = ...) -> None: ...

class PublishBatchResponse(_message.Message):
    __slots__ = ["results"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PublishResponse]
    def __init__(self, results: _Optional[_Iterable[_Union[PublishResponse, _Mapping]]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ["frame"]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: NewFrame
    def __init__(self, frame: _Optional[_Union[NewFrame, _Mapping]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ["duplicate", "position"]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., duplicate: bool = ...) -> None: ...

class PublishStreamRequest(_message.Message):
    __slots__ = ["frame", "number"]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    frame: NewFrame
    number: int
    def __init__(self, number: _Optional[int] = ..., frame: _Optional[_Union[NewFrame, _Mapping]] = ...) -> None: ...

class PublishStreamResponse(_message.Message):
    __slots__ = ["error", "number", "published"]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    error: Error
    number: int
    published: PublishResponse
    def __init__(self, number: _Optional[int] = ..., published: _Optional[_Union[PublishResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ReadFramesRequest(_message.Message):
    __slots__ = ["after", "channel", "limit", "scope"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    after: Position
    channel: str
    limit: int
    scope: str
    def __init__(self, channel: _Optional[str] = ..., scope: _Optional[str] = ..., after: _Optional[_Union[Position, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class ReadFramesResponse(_message.Message):
    __slots__ = ["closed", "frames", "gap", "head", "next"]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    closed: bool
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    gap: Gap
    head: Position
    next: Position
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., next: _Optional[_Union[Position, _Mapping]] = ..., head: _Optional[_Union[Position, _Mapping]] = ..., closed: bool = ...) -> None: ...

class SessionAuthenticate(_message.Message):
    __slots__ = ["token"]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class SessionCredit(_message.Message):
    __slots__ = ["bytes", "number"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    number: int
    def __init__(self, number: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ["authenticate", "credit", "subscribe", "unsubscribe"]
    AUTHENTICATE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    authenticate: SessionAuthenticate
    credit: SessionCredit
    subscribe: SessionSubscribe
    unsubscribe: SessionUnsubscribe
    def __init__(self, subscribe: _Optional[_Union[SessionSubscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[SessionUnsubscribe, _Mapping]] = ..., credit: _Optional[_Union[SessionCredit, _Mapping]] = ..., authenticate: _Optional[_Union[SessionAuthenticate, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ["authenticated", "caught_up", "closed", "closing", "ended", "frames", "gap", "numbers", "progress", "status", "subscribed", "unsubscribed"]
    AUTHENTICATED_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    authenticated: Authenticated
    caught_up: CaughtUp
    closed: Closed
    closing: Closing
    ended: Ended
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    gap: Gap
    numbers: _containers.RepeatedScalarFieldContainer[int]
    progress: Progress
    status: Status
    subscribed: Subscribed
    unsubscribed: Unsubscribed
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ..., unsubscribed: _Optional[_Union[Unsubscribed, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., authenticated: _Optional[_Union[Authenticated, _Mapping]] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionSubscribe(_message.Message):
    __slots__ = ["credit", "number", "request"]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    credit: int
    number: int
    request: SubscribeRequest
    def __init__(self, number: _Optional[int] = ..., request: _Optional[_Union[SubscribeRequest, _Mapping]] = ..., credit: _Optional[int] = ...) -> None: ...

class SessionUnsubscribe(_message.Message):
    __slots__ = ["number"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ["policy"]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: Policy
    def __init__(self, policy: _Optional[_Union[Policy, _Mapping]] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ["effective"]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    effective: Bounds
    def __init__(self, effective: _Optional[_Union[Bounds, _Mapping]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ["listening"]
    LISTENING_FIELD_NUMBER: _ClassVar[int]
    listening: bool
    def __init__(self, listening: bool = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ["behind", "channel", "closed", "created", "head", "oldest", "scope", "subscribers", "updated"]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    behind: int
    channel: str
    closed: bool
    created: _timestamp_pb2.Timestamp
    head: Position
    oldest: int
    scope: str
    subscribers: int
    updated: _timestamp_pb2.Timestamp
    def __init__(self, channel: _Optional[str] = ..., scope: _Optional[str] = ..., head: _Optional[_Union[Position, _Mapping]] = ..., oldest: _Optional[int] = ..., closed: bool = ..., subscribers: _Optional[int] = ..., created: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., updated: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., behind: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ["after", "channel", "last", "live", "oldest", "scope"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    after: Position
    channel: str
    last: int
    live: bool
    oldest: bool
    scope: str
    def __init__(self, channel: _Optional[str] = ..., scope: _Optional[str] = ..., oldest: bool = ..., live: bool = ..., after: _Optional[_Union[Position, _Mapping]] = ..., last: _Optional[int] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ["caught_up", "closed", "closing", "frames", "gap", "progress", "status", "subscribed"]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    caught_up: CaughtUp
    closed: Closed
    closing: Closing
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    gap: Gap
    progress: Progress
    status: Status
    subscribed: Subscribed
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ["ephemeral", "head", "oldest", "resume_after", "resumed"]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    ephemeral: bool
    head: Position
    oldest: int
    resume_after: Position
    resumed: bool
    def __init__(self, head: _Optional[_Union[Position, _Mapping]] = ..., oldest: _Optional[int] = ..., resume_after: _Optional[_Union[Position, _Mapping]] = ..., resumed: bool = ..., ephemeral: bool = ...) -> None: ...

class Unsubscribed(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class GapReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
