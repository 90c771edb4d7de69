"""The rules by which a subscription goes on, without a server."""

from __future__ import annotations

import unittest
from typing import List, Optional

import grpc

from fanfare import CaughtUp, Closed, FanfareError, Frame, Gap, GapReason, Interrupted, Position, Start, Subscribed
from fanfare._backoff import Backoff
from fanfare._resumption import HEALTHY, MAX_HOLES, Hole, Received, Resumption
from fanfare.v1 import fanfare_pb2 as pb

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def position(sequence: int, epoch: int = 7) -> pb.Position:
    return pb.Position(epoch=epoch, sequence=sequence)


def frames(*sequences: int) -> pb.SubscribeResponse:
    return pb.SubscribeResponse(frames=[pb.Frame(position=position(n), payload=b"%d" % n) for n in sequences])


def subscribed(after: int, resumed: bool = False, head: int = 9) -> pb.SubscribeResponse:
    return pb.SubscribeResponse(
        subscribed=pb.Subscribed(head=position(head), oldest=1, resume_after=position(after), resumed=resumed)
    )


def lost(message: str = "connection lost") -> FanfareError:
    return FanfareError(UNAVAILABLE, message)


def payloads(received: List[Received]) -> List[bytes]:
    return [item.event.payload for item in received if isinstance(item.event, Frame)]


class ResumptionTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 0.0

    def resumption(self, start: Start = Start.oldest()) -> Resumption:
        # The longest wait that the jitter could yield.
        backoff = Backoff(0.1, 5.0, uniform=lambda low, high: high)
        return Resumption("c", "s", start, backoff, clock=lambda: self.now)

    def running(self, start: Start = Start.oldest(), after: int = 0) -> Resumption:
        resumption = self.resumption(start)
        resumption.request()
        resumption.take(subscribed(after))
        return resumption

    def test_begins_with_the_start_that_was_asked_for(self) -> None:
        for start, kind in (
            (Start.oldest(), "oldest"),
            (Start.live(), "live"),
            (Start.last(3), "last"),
            (Start.after("7-5"), "after"),
        ):
            request = self.resumption(start).request()
            self.assertEqual((request.channel, request.scope, request.WhichOneof("start")), ("c", "s", kind))
        self.assertEqual(request.after, position(5))

    def test_resumes_after_the_last_frame(self) -> None:
        resumption = self.running()
        resumption.take(frames(1, 2))
        resumption.take(frames(3))
        self.assertIsInstance(resumption.ended(lost()), Interrupted)
        self.assertEqual(resumption.request().after, position(3))

    def test_resumes_where_delivery_began_if_no_frame_came(self) -> None:
        # A live subscription that began again with live would miss what was
        # published in between.
        resumption = self.running(Start.live(), after=9)
        resumption.ended(lost())
        self.assertEqual(resumption.request().after, position(9))

    def test_takes_a_position_ahead_of_what_came_for_a_hole(self) -> None:
        # A server that believes to have sent frames that did not come.
        for notice in (
            pb.SubscribeResponse(progress=pb.Progress(position=position(4))),
            pb.SubscribeResponse(caught_up=pb.CaughtUp(position=position(4))),
            pb.SubscribeResponse(closed=pb.Closed(last=position(4))),
        ):
            resumption = self.running()
            resumption.take(frames(1, 2))
            with self.assertRaises(Hole):
                resumption.take(notice)
            self.assertEqual(resumption.request().after, position(2))

    def test_takes_frames_of_another_numbering_for_a_hole(self) -> None:
        resumption = self.running()
        resumption.take(frames(1, 2))
        with self.assertRaises(Hole):
            resumption.take(pb.SubscribeResponse(frames=[pb.Frame(position=position(1, epoch=9))]))
        self.assertEqual(resumption.position, Position(7, 2))

    def test_takes_frames_before_subscribed_for_a_hole(self) -> None:
        resumption = self.resumption()
        resumption.request()
        with self.assertRaises(Hole):
            resumption.take(frames(1))

    def test_takes_frames_for_a_hole_if_a_gap_is_due(self) -> None:
        resumption = self.resumption(Start.after("7-2"))
        resumption.request()
        resumption.take(subscribed(2))
        with self.assertRaises(Hole):
            resumption.take(frames(3))

    def test_waits_for_a_reopening_without_telling_of_a_loss(self) -> None:
        # 0-0 cannot be resumed from once the stream has been closed, so the server says
        # Gap at each reconnect; what matters is whether it is still the same numbering.
        resumption = self.running(Start.live(), after=0)
        resumption._move_to(Position(), Position(7, 9))  # the head of the closed stream
        for head, told in ((position(9), False), (position(9), False), (position(1, epoch=8), True)):
            resumption.ended(lost())
            resumption.request()
            nowhere = pb.Position()
            resumption.take(
                pb.SubscribeResponse(subscribed=pb.Subscribed(head=head, oldest=1, resume_after=nowhere))
            )
            gap = pb.Gap(reason=pb.GAP_REASON_EPOCH_CHANGED, requested=nowhere, head=head, resume_after=nowhere)
            (received,) = resumption.take(pb.SubscribeResponse(gap=gap))
            self.assertEqual(received.event is not None, told)

    def test_takes_the_epoch_of_a_restarted_server_for_no_break(self) -> None:
        resumption = self.running()
        resumption.take(frames(1))
        other = pb.SubscribeResponse(frames=[pb.Frame(position=position(2, epoch=8), payload=b"2")])
        self.assertEqual(payloads(resumption.take(other)), [b"2"])
        self.assertEqual(resumption.position, Position(8, 2))

    def test_drops_repetitions(self) -> None:
        resumption = self.running()
        resumption.take(frames(1, 2, 3))
        self.assertEqual(payloads(resumption.take(frames(2, 3, 4))), [b"4"])

    def test_resumes_before_a_hole_and_yields_nothing_after_it(self) -> None:
        resumption = self.running()
        with self.assertRaises(Hole) as raised:
            resumption.take(frames(1, 2, 4))
        self.assertEqual(payloads(raised.exception.received), [b"1", b"2"])
        resumption.ended(raised.exception)
        self.assertEqual(resumption.request().after, position(2))

    def test_fails_after_holes_in_a_row(self) -> None:
        resumption = self.running()
        for attempt in range(1, MAX_HOLES + 1):
            with self.assertRaises(Hole) as raised:
                resumption.take(frames(2))
            if attempt < MAX_HOLES:
                self.assertIsNotNone(resumption.ended(raised.exception))
                resumption.request()
                resumption.take(subscribed(0, resumed=True))
        with self.assertRaises(Hole):
            resumption.ended(raised.exception)

    def test_goes_on_after_a_gap(self) -> None:
        resumption = self.running(Start.after("7-1"))
        gap = pb.Gap(
            reason=pb.GAP_REASON_TRIMMED, requested=position(1), oldest=5, head=position(9), resume_after=position(4)
        )
        (received,) = resumption.take(pb.SubscribeResponse(gap=gap))
        self.assertEqual(received.event, Gap(GapReason.TRIMMED, Position(7, 1), 5, Position(7, 9), Position(7, 4)))
        self.assertEqual(payloads(resumption.take(frames(5))), [b"5"])

    def test_keeps_its_position_until_the_gap_comes(self) -> None:
        # If the call ends between Subscribed and its Gap, going on with another
        # position would lose the Gap.
        resumption = self.resumption(Start.after("7-1"))
        resumption.request()
        resumption.take(subscribed(4, resumed=False))
        resumption.ended(lost())
        self.assertEqual(resumption.request().after, position(1))

    def test_takes_an_unknown_gap_reason_for_loss(self) -> None:
        (received,) = self.running().take(pb.SubscribeResponse(gap=pb.Gap(reason=99)))  # type: ignore[arg-type]
        assert isinstance(received.event, Gap)
        self.assertEqual(received.event.reason, GapReason.UNSPECIFIED)

    def test_ignores_a_response_with_nothing_it_knows(self) -> None:
        self.assertEqual(self.running().take(pb.SubscribeResponse()), [])

    def test_says_that_ephemeral_frames_may_be_missed_after_a_resumption(self) -> None:
        resumption = self.running()
        resumption.take(frames(1))
        ephemeral = pb.SubscribeResponse(frames=[pb.Frame(payload=b"e", ephemeral=True)])
        (received,) = resumption.take(ephemeral)
        self.assertEqual(received.position, Position(7, 1))
        resumption.ended(lost())
        resumption.request()
        resumption.ended(lost())  # an attempt that never was in force
        resumption.request()
        begun, missed = resumption.take(subscribed(1, resumed=True))
        self.assertIsInstance(begun.event, Subscribed)
        self.assertEqual(
            missed.event,
            Gap(GapReason.EPHEMERAL_MAYBE_MISSED, Position(7, 1), 1, Position(7, 9), Position(7, 1)),
        )
        self.assertEqual(len(resumption.take(pb.SubscribeResponse(caught_up=pb.CaughtUp(position=position(1))))), 1)

    def test_says_nothing_of_ephemeral_frames_to_streams_without_them(self) -> None:
        resumption = self.running()
        resumption.ended(lost())
        resumption.request()
        (begun,) = resumption.take(subscribed(0, resumed=True))
        self.assertIsInstance(begun.event, Subscribed)

    def test_ends_with_a_closed_stream(self) -> None:
        resumption = self.running()
        (received,) = resumption.take(pb.SubscribeResponse(closed=pb.Closed(last=position(0))))
        self.assertEqual(received.event, Closed(Position(7, 0)))
        self.assertIsNone(resumption.ended(None))

    def test_goes_on_if_a_call_ends_without_a_reason(self) -> None:
        self.assertIsNotNone(self.running().ended(None))

    def test_ends_with_errors_that_subscribing_again_would_meet_again(self) -> None:
        for code in ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"):
            with self.assertRaises(FanfareError, msg=code):
                self.running().ended(FanfareError(grpc.StatusCode[code], ""))
        full = grpc.StatusCode.RESOURCE_EXHAUSTED
        with self.assertRaises(FanfareError):
            self.running().ended(FanfareError(full, "", reason="LIMIT_REACHED"))
        for error in (
            FanfareError(full, "", reason="LIMIT_REACHED", retry_in=1.0),
            FanfareError(full, "", reason="SLOW_SUBSCRIBER", retry_in=1.0),
            FanfareError(grpc.StatusCode.INTERNAL, "", reason="INTERNAL"),
        ):
            self.assertIsNotNone(self.running().ended(error))

    def waits(self, resumption: Resumption, error: FanfareError, last: float = 0.0) -> Optional[float]:
        resumption.request()
        self.now += last
        interrupted = resumption.ended(error)
        return None if interrupted is None else interrupted.retry_in

    def test_waits_longer_with_each_failure_up_to_a_bound(self) -> None:
        resumption = self.running()
        with self.assertLogs("fanfare", "WARNING"):
            waits = [self.waits(resumption, lost()) for _ in range(8)]
        self.assertEqual(waits, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])

    def test_waits_as_long_as_the_server_asks_and_a_little_more(self) -> None:
        resumption = self.running()
        resumption.take(pb.SubscribeResponse(closing=pb.Closing(resume_after=position(0), retry_in={"seconds": 2})))
        interrupted = resumption.ended(FanfareError(UNAVAILABLE, "", reason="DRAINING", retry_in=9.0))
        assert interrupted is not None
        self.assertAlmostEqual(interrupted.retry_in, 2.1)
        with self.assertLogs("fanfare", "WARNING"):
            self.assertEqual(self.waits(resumption, FanfareError(UNAVAILABLE, "", retry_in=3.0)), 3.2)

    def test_waits_shortly_after_a_call_that_was_worth_it(self) -> None:
        resumption = self.running()
        with self.assertLogs("fanfare", "WARNING"):
            for _ in range(5):
                self.waits(resumption, lost())
        resumption.request()
        resumption.take(subscribed(0, resumed=True))
        resumption.take(frames(1))
        interrupted = resumption.ended(lost())
        assert interrupted is not None
        self.assertEqual(interrupted.retry_in, 0.1)
        resumption.request()
        resumption.take(subscribed(1, resumed=True))
        self.now += HEALTHY
        interrupted = resumption.ended(lost())
        assert interrupted is not None
        self.assertEqual(interrupted.retry_in, 0.1)

    def test_tells_of_attempts_that_were_never_in_force(self) -> None:
        # They were logged alone: who reads could not know that nothing is delivered.
        resumption = self.resumption()
        resumption.request()
        failure = lost("nobody there")
        with self.assertLogs("fanfare", "WARNING") as logs:
            interrupted = resumption.ended(failure)
        self.assertEqual(interrupted, Interrupted(failure, 0.1))
        self.assertIn("nobody there", logs.output[0])

    def test_logs_what_fails_again_and_again_less_and_less(self) -> None:
        # Each attempt was logged: hundreds of lines in ten minutes, of each subscription.
        resumption = self.resumption()
        with self.assertLogs("fanfare", "WARNING") as logs:
            for _ in range(100):
                self.waits(resumption, lost())
        self.assertEqual(len(logs.output), 7)
        resumption.request()
        resumption.take(subscribed(0))
        resumption.ended(lost())
        with self.assertLogs("fanfare", "WARNING") as logs:
            self.waits(resumption, lost())
        self.assertIn("attempt 1:", logs.output[0])

    def test_yields_caught_up(self) -> None:
        resumption = self.running()
        resumption.take(frames(1, 2, 3))
        (received,) = resumption.take(pb.SubscribeResponse(caught_up=pb.CaughtUp(position=position(3))))
        self.assertEqual(received, Received(CaughtUp(Position(7, 3)), Position(7, 3)))


if __name__ == "__main__":
    unittest.main()
