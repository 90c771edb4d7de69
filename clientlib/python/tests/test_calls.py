"""When a unary call is made again, what errors say, and positions as text; without a
server."""

from __future__ import annotations

import re
import unittest
from typing import Any, Tuple

import grpc

from fanfare import Client, FanfareError, InvalidField, NewFrame, OutcomeUnknown, Position, Start
from fanfare._attempts import Attempts
from fanfare._backoff import Backoff
from fanfare._details import Details, _parsed, details_of
from fanfare._requests import batch_request, close_request, publish_request
from fanfare.errors import error_of

CODES = grpc.StatusCode
LOST = FanfareError(CODES.UNAVAILABLE, "Socket closed")
NEVER_SENT = FanfareError(CODES.UNAVAILABLE, "failed to connect to all addresses; last error: refused")
NO_NAME = FanfareError(CODES.UNAVAILABLE, "DNS resolution failed for nowhere: C-ares status is not ARES_SUCCESS")
STORE = FanfareError(CODES.UNAVAILABLE, "", reason="STORE_UNAVAILABLE", retry_in=1.0)
QUEUE = FanfareError(CODES.RESOURCE_EXHAUSTED, "", reason="PUBLISH_QUEUE_FULL", retry_in=0.2)
UNKNOWN = OutcomeUnknown(CODES.UNKNOWN, "", reason="OUTCOME_UNKNOWN")
LATE = FanfareError(CODES.DEADLINE_EXCEEDED, "Deadline Exceeded")
REFUSED = FanfareError(CODES.ABORTED, "", reason="EXPECTATION_FAILED")
FORBIDDEN = FanfareError(CODES.PERMISSION_DENIED, "", reason="PERMISSION_DENIED")
FAULT = FanfareError(CODES.INTERNAL, "", reason="INTERNAL")


class AttemptsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 100.0

    def attempts(self, safe: bool) -> Attempts:
        backoff = Backoff(0.1, 5.0, uniform=lambda low, high: high)
        return Attempts(safe, 30.0, 10.0, backoff, clock=lambda: self.now)

    def test_repeats_a_safe_call_whatever_became_of_it(self) -> None:
        for error in (LOST, NEVER_SENT, STORE, QUEUE, UNKNOWN, LATE, FAULT):
            self.assertAlmostEqual(self.attempts(safe=True).failed(error), 0.1 + (error.retry_in or 0.0))

    def test_repeats_another_only_if_nothing_was_done(self) -> None:
        for error in (NEVER_SENT, NO_NAME, STORE, QUEUE):
            self.attempts(safe=False).failed(error)
        # A fault of the server may come after the commit.
        for error in (LOST, UNKNOWN, LATE, FAULT):
            with self.assertRaises(OutcomeUnknown):
                self.attempts(safe=False).failed(error)

    def test_repeats_no_refusal(self) -> None:
        for error in (REFUSED, FORBIDDEN):
            for safe in (True, False):
                with self.assertRaises(FanfareError) as raised:
                    self.attempts(safe).failed(error)
                self.assertIs(raised.exception, error)

    def test_ends_with_the_error_when_the_time_is_over(self) -> None:
        attempts = self.attempts(safe=True)
        attempts.failed(STORE)
        self.now += 29.5
        with self.assertRaises(FanfareError) as raised:
            attempts.failed(STORE)
        self.assertIs(raised.exception, STORE)

    def test_does_not_say_that_nothing_was_done_if_an_earlier_attempt_may_have(self) -> None:
        attempts = self.attempts(safe=True)
        attempts.failed(LOST)
        self.now += 30.0
        with self.assertRaises(OutcomeUnknown):
            attempts.failed(NEVER_SENT)

    def test_takes_a_refusal_for_the_outcome_only_if_the_server_has_looked_for_the_key(self) -> None:
        # Who is refused before that, as with a token that has expired meanwhile, was told
        # that nothing was published, though an earlier attempt may have published it.
        for error, expected in ((REFUSED, REFUSED), (FORBIDDEN, None)):
            attempts = self.attempts(safe=True)
            attempts.failed(LOST)
            with self.assertRaises(FanfareError) as raised:
                attempts.failed(error)
            if expected is None:
                self.assertIsInstance(raised.exception, OutcomeUnknown)
            else:
                self.assertIs(raised.exception, expected)

    def test_bounds_each_attempt_and_all_together(self) -> None:
        attempts = self.attempts(safe=True)
        self.assertEqual(attempts.timeout(), 10.0)
        self.now += 24.0
        self.assertEqual(attempts.timeout(), 6.0)
        self.now += 24.0
        self.assertEqual(attempts.timeout(), 0.0)

    def test_gives_a_call_that_it_may_not_repeat_all_the_time(self) -> None:
        # It ended after the time of one attempt, its outcome unknown.
        self.assertEqual(self.attempts(safe=False).timeout(), 30.0)


class RequestsTest(unittest.TestCase):
    def test_gives_a_durable_frame_a_key_of_its_own(self) -> None:
        first, safe = publish_request(NewFrame("c"))
        second, _ = publish_request(NewFrame("c"))
        self.assertTrue(safe)
        self.assertNotEqual(first.frame.idempotency_key, second.frame.idempotency_key)

    def test_keeps_the_key_that_it_is_given(self) -> None:
        request, safe = publish_request(NewFrame("c", idempotency_key="k"))
        self.assertEqual((request.frame.idempotency_key, safe), ("k", True))
        request, safe = publish_request(NewFrame("c", idempotency_key=""))
        self.assertEqual((request.frame.idempotency_key, safe), ("", False))

    def test_refuses_what_is_no_text_and_names_the_field(self) -> None:
        # None was taken for empty, and the frame went to another stream.
        wrong: Any = None
        for frame, field in (
            (NewFrame(wrong), "frame.channel"),
            (NewFrame("c", wrong), "frame.scope"),
            (NewFrame("c", "s", "text"), "frame.payload"),  # type: ignore[arg-type]
            (NewFrame("c", headers={"a": wrong}), "frame.headers['a']"),
            (NewFrame("c", headers=[("a", "b")]), "frame.headers"),  # type: ignore[arg-type]
            (NewFrame("c", idempotency_key=7), "frame.idempotency_key"),  # type: ignore[arg-type]
            (NewFrame("c", expected_sequence="7"), "frame.expected_sequence"),  # type: ignore[arg-type]
        ):
            with self.assertRaisesRegex(TypeError, "^" + re.escape(field) + " must be"):
                publish_request(frame)
        with self.assertRaisesRegex(TypeError, "^scope must be a str"):
            close_request("c", wrong, None)

    def test_refuses_what_protobuf_cannot_send_and_names_the_field(self) -> None:
        for frame, field in (
            (NewFrame("c\ud800"), "frames[1].channel"),
            (NewFrame("c", headers={"a": "\udfff"}), "frames[1].headers['a']"),
            (NewFrame("c", expected_sequence=-1), "frames[1].expected_sequence"),
            (NewFrame("c", expected_epoch=1 << 63), "frames[1].expected_epoch"),
        ):
            with self.assertRaises(InvalidField) as raised:
                batch_request([NewFrame("c"), frame])
            self.assertEqual(raised.exception.field, field)

    def test_takes_all_kinds_of_bytes(self) -> None:
        for payload in (b"ab", bytearray(b"ab"), memoryview(b"xaby")[1:3]):
            self.assertEqual(publish_request(NewFrame("c", payload=payload))[0].frame.payload, b"ab")

    def test_takes_an_ephemeral_frame_for_unsafe_to_repeat(self) -> None:
        request, safe = publish_request(NewFrame("c", ephemeral=True))
        self.assertEqual((request.frame.idempotency_key, safe), ("", False))

    def test_takes_a_batch_for_safe_if_its_durable_frames_have_keys(self) -> None:
        durable, ephemeral = NewFrame("c"), NewFrame("c", ephemeral=True)
        keyless = NewFrame("c", idempotency_key="")
        for frames, expected in (
            ([durable, ephemeral], True),
            ([ephemeral], False),
            ([durable, keyless], False),
        ):
            self.assertEqual(batch_request(frames)[1], expected)

    def test_takes_a_close_for_safe_if_it_names_the_numbering(self) -> None:
        self.assertFalse(close_request("c", "s", None)[1])
        self.assertTrue(close_request("c", "s", 7)[1])

    def test_tells_an_expected_sequence_of_zero_from_none(self) -> None:
        self.assertFalse(publish_request(NewFrame("c"))[0].frame.HasField("expected_sequence"))
        self.assertTrue(publish_request(NewFrame("c", expected_sequence=0))[0].frame.HasField("expected_sequence"))


class DetailsTest(unittest.TestCase):
    def details(self, *messages: Tuple[str, bytes]) -> Details:
        status = _parsed("Status", b"")
        for name, data in messages:
            status.details.add(type_url="type.googleapis.com/google.rpc." + name, value=data)
        return details_of([("other", "x"), ("grpc-status-details-bin", status.SerializeToString())])

    def info(self, domain: str = "fanfare.dev") -> bytes:
        info = _parsed("ErrorInfo", b"")
        info.reason, info.domain = "EXPECTATION_FAILED", domain
        info.metadata.add(key="head", value="7-5")
        return bytes(info.SerializeToString())

    def test_reads_what_the_server_tells(self) -> None:
        request = _parsed("BadRequest", b"")
        request.violations.add(field="frame.channel")
        retry = _parsed("RetryInfo", b"")
        retry.delay.seconds, retry.delay.nanos = 1, 500_000_000
        self.assertEqual(
            self.details(("ErrorInfo", self.info()), ("RetryInfo", retry.SerializeToString()), ("BadRequest", request.SerializeToString())),
            Details("EXPECTATION_FAILED", "frame.channel", "7-5", 1.5),
        )

    def test_ignores_what_is_not_the_servers(self) -> None:
        self.assertEqual(self.details(("ErrorInfo", self.info("other.example"))), Details())
        self.assertEqual(self.details(("DebugInfo", b"\x0a\x01x")), Details())
        self.assertEqual(details_of([("grpc-status-details-bin", b"\xff\xff")]), Details())


class Broken(grpc.RpcError):  # type: ignore[misc]
    """What grpc raises of a connection that its peer has ended."""

    def __init__(self, status: bytes = b"", message: str = "Socket closed") -> None:
        self.status = status
        self.message = message

    def code(self) -> grpc.StatusCode:
        return CODES.UNAVAILABLE

    def details(self) -> str:
        return self.message

    def debug_error_string(self) -> str:
        return "UNKNOWN:too_many_pings"

    def trailing_metadata(self) -> Tuple[Tuple[str, bytes], ...]:
        return (("grpc-status-details-bin", self.status),) if self.status else ()


class ErrorTest(unittest.TestCase):
    def test_says_why_a_connection_is_gone(self) -> None:
        # grpc's words for people do not say it, so that nobody could tell a server that
        # went away from one that refuses pings.
        self.assertEqual(str(error_of(Broken())), "UNAVAILABLE: Socket closed [UNKNOWN:too_many_pings]")

    def test_says_once_that_no_server_was_reached(self) -> None:
        # All of the message stood in the debug string again.
        message = "failed to connect to all addresses; last error: refused"
        self.assertEqual(str(error_of(Broken(message=message))), f"UNAVAILABLE: {message}")

    def test_adds_nothing_to_what_a_server_says(self) -> None:
        info = _parsed("ErrorInfo", b"")
        info.reason, info.domain = "DRAINING", "fanfare.dev"
        status = _parsed("Status", b"")
        status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
        self.assertEqual(str(error_of(Broken(status.SerializeToString()))), "UNAVAILABLE (DRAINING): Socket closed")


class PositionTest(unittest.TestCase):
    def test_is_read_as_it_is_written(self) -> None:
        for text in ("0-0", "7-5", f"{2**63 - 1}-{2**63 - 1}"):
            self.assertEqual(str(Position.parse(text)), text)

    def test_refuses_other_text(self) -> None:
        for text in ("", "7", "7-", "-5", "07-5", "7-05", "7-5 ", "+7-5", "7-٥", f"{2**63}-1", "7-5-3"):
            with self.assertRaises(ValueError, msg=text):
                Position.parse(text)


class ArgumentsTest(unittest.TestCase):
    def test_refuses_starts_that_are_none(self) -> None:
        # A position that was never stored was taken for no start, and everything came
        # again.
        wrong: Any = None
        with self.assertRaisesRegex(TypeError, "not NoneType"):
            Start.after(wrong)
        for frames in (-1, 1 << 64):
            with self.assertRaises(ValueError):
                Start.last(frames)
        with Client("127.0.0.1:1") as client:
            for start in ("7-5", Position(7, 5), wrong):
                with self.assertRaisesRegex(TypeError, "start must be a Start"):
                    client.subscribe("c", "s", start)
            with self.assertRaisesRegex(TypeError, "scope must be a str"):
                client.subscribe("c", wrong)

    def test_refuses_times_that_are_none(self) -> None:
        # No time at all was an outcome that is unknown.
        for seconds in (0.0, -1.0, float("nan")):
            for name in ("timeout", "attempt_timeout", "idle_timeout"):
                times: Any = {name: seconds}
                with self.assertRaisesRegex(ValueError, f"^{name} must be above 0 s"):
                    Client("127.0.0.1:1", **times)
            with Client("127.0.0.1:1") as client, self.assertRaisesRegex(ValueError, "^timeout must"):
                client.publish("c", timeout=seconds)


if __name__ == "__main__":
    unittest.main()
