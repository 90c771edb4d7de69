"""What README.md shows and example.py do what they say."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict

from fanfare import Client, Position

from .servers import PATIENCE, Server, eventually, stream

HERE = pathlib.Path(__file__).parent.parent


class ReadmeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        text = (HERE / "README.md").read_text(encoding="utf-8")
        self.snippets = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)

    def run_snippet(self, containing: str) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.execute(containing)
        return output.getvalue()

    def execute(self, containing: str) -> Dict[str, Any]:
        """Returns the names that a snippet has defined."""
        (snippet,) = [snippet for snippet in self.snippets if containing in snippet]
        code = re.sub(r"127\.0\.0\.1:742\d", self.server.target, snippet)
        names: Dict[str, Any] = {"__name__": "readme"}
        exec(compile(code, "README.md", "exec"), names)
        return names

    def test_are_all_run(self) -> None:
        self.assertEqual(len(self.snippets), 5)

    def test_of_the_project(self) -> None:
        text = (HERE.parent.parent / "README.md").read_text(encoding="utf-8")
        self.snippets = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        with Client(self.server.target) as client, ThreadPoolExecutor(1) as pool:
            first = client.publish("chat/messages", "lobby", b"first").position
            followed = pool.submit(self.run_snippet, "Start.oldest")
            eventually(
                "the snippet follows",
                lambda: stream(self.server, "chat/messages", "lobby").subscribers == 1,
            )
            last = client.close_stream("chat/messages", "lobby")
            self.assertEqual(followed.result(PATIENCE), f"{first} b'first'\n{last} b'hello'\n")

    def test_publish(self) -> None:
        position, newest = self.run_snippet("publish_batch").splitlines()
        epoch = Position.parse(position).epoch
        self.assertEqual((position, newest), (f"{epoch}-1", f"the newest is {epoch}-2"))

    def test_follow(self) -> None:
        with Client(self.server.target) as client, ThreadPoolExecutor(1) as pool:
            client.publish("orders/events", "42", b"paid")
            followed = pool.submit(self.run_snippet, "Start.after")
            eventually(
                "the snippet follows",
                lambda: stream(self.server, "orders/events", "42").subscribers == 1,
            )
            last = client.close_stream("orders/events", "42")
            self.assertEqual(followed.result(PATIENCE), f"{last} b'paid'\nthe order is done\n")

    def test_asyncio(self) -> None:
        self.assertEqual(self.run_snippet("asyncio.run"), "b'made'\n")

    def test_tokens(self) -> None:
        names = self.execute("refresh")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("a token\n")
            file.flush()
            names["open"] = lambda path: open(file.name) if path == "/run/secrets/fanfare-token" else None
            self.assertEqual(names["token"](False), "a token")
        names["client"].close()

    def test_credentials(self) -> None:
        self.assertEqual(self.run_snippet("backoff="), "")


class ExampleTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(HERE / "example.py"), *arguments],
            env={**os.environ, "FANFARE_SERVER": self.server.target},
            stdout=subprocess.PIPE,
            text=True,
            # A shell has what it runs in the background ignore the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.addCleanup(process.stdout.close)  # type: ignore[union-attr]
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_follows_what_is_said(self) -> None:
        said = self.start("say", "lobby", "hello", "there")
        self.assertRegex(said.communicate(timeout=PATIENCE)[0], r"^published at \d+-1\n$")
        follower = self.start("follow", "lobby")
        assert follower.stdout is not None
        lines = [follower.stdout.readline() for _ in range(2)]
        self.assertEqual(lines, ["hello there\n", "(this was the backlog)\n"])
        self.start("say", "lobby", "again").communicate(timeout=PATIENCE)
        self.assertEqual(follower.stdout.readline(), "again\n")
        follower.send_signal(signal.SIGINT)
        rest, _ = follower.communicate(timeout=PATIENCE)
        self.assertRegex(rest, r"^go on with \d+-2\n$")
        self.assertEqual(follower.returncode, 0)


if __name__ == "__main__":
    unittest.main()
