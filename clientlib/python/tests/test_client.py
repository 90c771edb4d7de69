"""The client at a real server."""

from __future__ import annotations

import collections
import contextlib
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Iterator, List, Type, TypeVar

import grpc

from fanfare import (
    CaughtUp,
    Client,
    Closed,
    Event,
    ExpectationFailed,
    Frame,
    Gap,
    GapReason,
    Interrupted,
    InvalidField,
    KeyConflict,
    NewFrame,
    OutcomeUnknown,
    Start,
    Subscribed,
    Subscription,
)

from .servers import PATIENCE, Proxy, Server, eventually, free_port, stream

E = TypeVar("E")


@contextlib.contextmanager
def patience(subscription: Subscription) -> Iterator[None]:
    """Ends a subscription that is waited for too long."""
    late = threading.Timer(PATIENCE, subscription.close)
    late.start()
    try:
        yield
        if late.finished.is_set():
            raise AssertionError(f"{PATIENCE} s passed")
    finally:
        late.cancel()


def take(subscription: Subscription, kind: Type[E]) -> E:
    """Returns the next event of a kind, and lets those before it go."""
    with patience(subscription):
        for event in subscription:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"the subscription ended without {kind.__name__}")


def rest(subscription: Subscription) -> List[Event]:
    """Returns what comes until the subscription ends."""
    with patience(subscription):
        events = list(subscription)
    return events


def take_payloads(subscription: Subscription, count: int) -> List[bytes]:
    return [take(subscription, Frame).payload for _ in range(count)]


def numbered(first: int, last: int) -> List[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


class ClientTest(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("--backlog", "500")
        cls.addClassCleanup(cls.server.close)

    def setUp(self) -> None:
        self.scope = self.id()

    def client(self, *targets: str) -> Client:
        client = Client(targets or self.server.target, backoff=(0.01, 0.1))
        self.addCleanup(client.close)
        return client

    def proxy(self) -> Proxy:
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        return proxy

    def publish(self, *payloads: bytes) -> None:
        self.client().publish_batch(NewFrame("c", self.scope, payload) for payload in payloads)

    def head(self) -> int:
        return int(stream(self.server, "c", self.scope).head.sequence)

    def test_yields_what_was_published(self) -> None:
        client = self.client()
        published = client.publish(
            "c", self.scope, b"\x00\xff", content_type="a/b", event_type="made", headers={"k": "v"}
        )
        self.assertFalse(published.duplicate)
        subscription = client.subscribe("c", self.scope)
        self.assertEqual(take(subscription, Subscribed).head, published.position)
        frame = take(subscription, Frame)
        self.assertEqual(
            (frame.position, frame.payload, frame.content_type, frame.event_type, frame.headers, frame.ephemeral),
            (published.position, b"\x00\xff", "a/b", "made", {"k": "v"}, False),
        )
        self.assertIsNotNone(frame.created.tzinfo)
        self.assertEqual(take(subscription, CaughtUp).position, published.position)
        self.assertEqual(subscription.position, published.position)

    def test_yields_frames_of_a_megabyte(self) -> None:
        client = self.client()
        large = bytes(range(256)) * 4096
        client.publish("c", self.scope, large)
        self.assertEqual(take(client.subscribe("c", self.scope), Frame).payload, large)

    def test_begins_where_it_is_told_to(self) -> None:
        client = self.client()
        self.publish(*numbered(1, 5))
        whole = client.subscribe("c", self.scope)
        take_payloads(whole, 3)
        third = whole.position
        expected: Dict[Start, List[bytes]] = {
            Start.oldest(): numbered(1, 5),
            Start.after(third): numbered(4, 5),
            Start.after(str(third)): numbered(4, 5),
            Start.last(1): numbered(5, 5),
            Start.live(): [],
        }
        subscriptions = [client.subscribe("c", self.scope, start) for start in expected]
        for start, subscription in zip(expected, subscriptions):
            self.assertEqual(take(subscription, Subscribed).resumed, start == Start.after(third))
        self.publish(b"6")
        for subscription, payloads in zip(subscriptions, expected.values()):
            self.assertEqual(take_payloads(subscription, len(payloads) + 1), [*payloads, b"6"])

    def test_answers_a_known_key_with_the_first_position(self) -> None:
        client = self.client()
        first = client.publish("c", self.scope, b"1", idempotency_key="k")
        again = client.publish("c", self.scope, b"1", idempotency_key="k")
        self.assertEqual((again.position, again.duplicate), (first.position, True))
        with self.assertRaises(KeyConflict) as raised:
            client.publish("c", self.scope, b"2", idempotency_key="k")
        self.assertEqual(raised.exception.position, first.position)

    def test_says_what_was_refused(self) -> None:
        client = self.client()
        published = client.publish("c", self.scope, expected_sequence=0)
        with self.assertRaises(ExpectationFailed) as failed:
            client.publish("c", self.scope, expected_sequence=0)
        self.assertEqual(failed.exception.position, published.position)
        with self.assertRaises(InvalidField) as invalid:
            client.publish_batch([NewFrame("c"), NewFrame("c", event_type="fanfare.x")])
        self.assertEqual(invalid.exception.field, "frames[1].event_type")

    def test_ends_with_an_error_that_is_for_good(self) -> None:
        subscription = self.client().subscribe("", self.scope)
        with self.assertRaises(InvalidField) as raised:
            take(subscription, Subscribed)
        self.assertEqual((raised.exception.code, raised.exception.field), (grpc.StatusCode.INVALID_ARGUMENT, "channel"))
        self.assertEqual(rest(subscription), [])

    def test_ends_when_the_stream_is_closed(self) -> None:
        client = self.client()
        last = client.publish("c", self.scope, b"1").position
        assert last is not None
        subscription = client.subscribe("c", self.scope)
        take(subscription, CaughtUp)
        with self.assertRaises(ExpectationFailed):
            client.close_stream("c", self.scope, expected_epoch=1)
        self.assertEqual(client.close_stream("c", self.scope, expected_epoch=last.epoch), last)
        self.assertEqual(rest(subscription), [Closed(last)])

    def test_says_what_was_trimmed(self) -> None:
        client = self.client()
        first = client.publish("c", self.scope, b"first").position
        assert first is not None
        self.publish(*numbered(2, 601))
        subscription = client.subscribe("c", self.scope, Start.after(first))
        gap = take(subscription, Gap)
        self.assertEqual((gap.reason, gap.requested, gap.oldest), (GapReason.TRIMMED, first, 102))
        self.assertEqual(take(subscription, Frame).payload, b"102")

    def test_resumes_exactly_after_every_cut(self) -> None:
        proxy = self.proxy()
        publisher = self.client()
        subscription = self.client(proxy.target).subscribe("c", self.scope)
        got: List[bytes] = []
        interruptions = 0
        for round in range(30):
            first = 10 * round + 1
            publisher.publish_batch(NewFrame("c", self.scope, payload) for payload in numbered(first, first + 9))
            # Cut in the midst of a round, at another place each time.
            while len(got) < first + round % 10:
                event = next(subscription)
                interruptions += isinstance(event, Interrupted)
                if isinstance(event, Frame):
                    got.append(event.payload)
            proxy.cut()
        got += take_payloads(subscription, 300 - len(got))
        self.assertEqual(got, numbered(1, 300))
        self.assertGreater(interruptions, 15)
        self.publish(b"marker")
        self.assertEqual(take_payloads(subscription, 1), [b"marker"])
        eventually(
            "one subscription is left of all calls",
            lambda: stream(self.server, "c", self.scope).subscribers == 1,
        )

    def test_goes_on_from_a_position_that_was_stored(self) -> None:
        client = self.client()
        self.publish(*numbered(1, 5))
        with client.subscribe("c", self.scope) as first:
            take_payloads(first, 2)
        second = client.subscribe("c", self.scope, Start.after(str(first.position)))
        self.assertEqual(take_payloads(second, 3), numbered(3, 5))

    def test_says_that_ephemeral_frames_may_be_missed(self) -> None:
        proxy = self.proxy()
        subscription = self.client(proxy.target).subscribe("c", self.scope)
        take(subscription, CaughtUp)
        self.client().publish("c", self.scope, b"typing", ephemeral=True)
        frame = take(subscription, Frame)
        self.assertEqual((frame.payload, frame.position, frame.ephemeral), (b"typing", None, True))
        proxy.cut()
        take(subscription, Subscribed)
        self.assertEqual(take(subscription, Gap).reason, GapReason.EPHEMERAL_MAYBE_MISSED)

    def test_uses_another_target_when_one_is_dead(self) -> None:
        dead = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        for _ in range(5):  # which one comes first is chance
            client = self.client(*dead, self.server.target)
            client.publish("c", self.scope, ephemeral=True)
            take(self.client(*dead, self.server.target).subscribe("c", self.scope), Subscribed)

    def test_stays_with_a_target_that_has_not_failed(self) -> None:
        # Closing cancels a call that is waited for, which looks like a failure of its
        # server.
        proxies = [self.proxy(), self.proxy()]
        client = self.client(*(proxy.target for proxy in proxies))
        for _ in range(5):
            subscription = client.subscribe("c", self.scope)
            seen: List[Event] = []
            reader = threading.Thread(target=collections.deque, args=(map(seen.append, subscription),))
            reader.start()
            eventually("the reader has caught up", lambda: len(seen) == 2)
            subscription.close()
            reader.join(PATIENCE)
        self.assertEqual(sorted(proxy.accepted for proxy in proxies), [0, 1])

    def test_publishes_once_though_the_answer_is_lost(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.target)
        self.publish(b"first")
        client.publish("c", self.scope, b"second")
        proxy.deaf = True
        with ThreadPoolExecutor(1) as pool:
            published = pool.submit(client.publish, "c", self.scope, b"third")
            eventually("the frame is stored", lambda: self.head() == 3)
            proxy.deaf = False
            proxy.cut()
            result = published.result(PATIENCE)
        assert result.position is not None
        self.assertEqual((result.position.sequence, self.head()), (3, 3))

    def test_does_not_repeat_a_frame_without_a_key(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.target)
        self.publish(b"first")
        client.publish("c", self.scope, b"second")
        proxy.deaf = True
        with ThreadPoolExecutor(1) as pool:
            published = pool.submit(client.publish, "c", self.scope, b"third", idempotency_key="")
            eventually("the frame is stored", lambda: self.head() == 3)
            proxy.deaf = False
            proxy.cut()
            with self.assertRaises(OutcomeUnknown):
                published.result(PATIENCE)
        self.publish(b"marker")
        self.assertEqual(take_payloads(self.client().subscribe("c", self.scope), 4)[2:], [b"third", b"marker"])

    def test_gives_up_in_the_time_that_it_was_given(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.target)
        client.publish("c", self.scope, b"1")
        proxy.deaf = True
        with self.assertRaises(OutcomeUnknown):
            client.publish("c", self.scope, b"2", timeout=0.3)

    def test_has_threads_follow_and_publish_at_once(self) -> None:
        client = self.client()

        def follow(number: int) -> List[bytes]:
            return take_payloads(client.subscribe("c", f"{self.scope}/{number}"), 20)

        with ThreadPoolExecutor(8) as pool:
            followers = [pool.submit(follow, number) for number in range(4)]
            for payload in numbered(1, 20):
                for number in range(4):
                    pool.submit(client.publish, "c", f"{self.scope}/{number}", payload).result(PATIENCE)
            for follower in followers:
                self.assertEqual(follower.result(PATIENCE), numbered(1, 20))


class ClosingTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        self.client = Client(self.server.target)
        self.addCleanup(self.client.close)

    def follow(self, subscription: Subscription) -> "tuple[threading.Thread, List[Event]]":
        events: List[Event] = []
        reader = threading.Thread(target=lambda: events.extend(subscription), daemon=True)
        reader.start()
        return reader, events

    def test_ends_an_iteration_that_waits_for_a_frame(self) -> None:
        subscription = self.client.subscribe("c", "s")
        take(subscription, CaughtUp)
        reader, events = self.follow(subscription)
        subscription.close()
        reader.join(PATIENCE)
        self.assertEqual((reader.is_alive(), events), (False, []))

    def test_ends_an_iteration_that_waits_to_call_again(self) -> None:
        patient = Client(self.server.target, backoff=(3600.0, 3600.0))
        self.addCleanup(patient.close)
        subscription = patient.subscribe("c", "s")
        take(subscription, CaughtUp)
        self.server.end()
        take(subscription, Interrupted)
        reader, _ = self.follow(subscription)
        patient.close()
        reader.join(PATIENCE)
        self.assertFalse(reader.is_alive())

    def test_of_the_client_ends_its_subscriptions(self) -> None:
        subscriptions = [self.client.subscribe("c", str(n)) for n in range(3)]
        for subscription in subscriptions:
            take(subscription, CaughtUp)
        readers = [self.follow(subscription)[0] for subscription in subscriptions]
        self.client.close()
        for reader in readers:
            reader.join(PATIENCE)
            self.assertFalse(reader.is_alive())
        with self.assertRaises(ValueError):
            self.client.subscribe("c", "s")


class RestartTest(unittest.TestCase):
    """One server that ends and comes back at its address."""

    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        self.client = Client(self.server.target, backoff=(0.01, 0.1))
        self.addCleanup(self.client.close)

    def test_resumes_after_a_crash(self) -> None:
        subscription = self.client.subscribe("c", "s")
        for round in range(2):
            self.client.publish("c", "s", b"before")
            self.assertEqual(take_payloads(subscription, 1), [b"before"])
            self.server.end()
            self.server.start()
            self.client.publish("c", "s", b"after")
            self.assertTrue(take(subscription, Subscribed).resumed or round == 0)
            self.assertEqual(take_payloads(subscription, 1), [b"after"])

    def test_is_told_why_a_server_goes_away(self) -> None:
        subscription = self.client.subscribe("c", "s")
        take(subscription, CaughtUp)
        self.server.terminate()
        interrupted = take(subscription, Interrupted)
        self.assertEqual(interrupted.error.reason, "DRAINING")
        self.server.await_end()
        self.server.start()
        self.assertTrue(take(subscription, Subscribed).resumed)

    def test_publishes_when_the_server_is_back(self) -> None:
        self.client.publish("c", "s", b"1")
        self.server.end()
        with ThreadPoolExecutor(1) as pool:
            published = pool.submit(self.client.publish, "c", "s", b"2")
            self.server.start()
            result = published.result(PATIENCE)
        assert result.position is not None
        self.assertEqual(result.position.sequence, 2)


if __name__ == "__main__":
    unittest.main()
