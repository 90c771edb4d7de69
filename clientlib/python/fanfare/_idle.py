"""Finds calls to which nothing comes, for the client with threads."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, Optional


class IdleWatch:
    """Ends calls that wait for a message longer than ``limit`` seconds. One thread does
    it for all of a client's subscriptions, and only while one waits."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        # Since when each call has waited.
        self._waiting: Dict[Any, float] = {}
        self._thread: Optional[threading.Thread] = None

    def begin(self, call: Any) -> None:
        """Takes note that a call waits for a message."""
        with self._lock:
            self._waiting[call] = time.monotonic()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="fanfare-idle", daemon=True)
                self._thread.start()

    def end(self, call: Any) -> bool:
        """Takes note that a wait is over, and returns whether the call was ended for
        it."""
        with self._lock:
            return self._waiting.pop(call, None) is None

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        pause: Optional[float] = self.limit
        while pause is not None and not self._closed.wait(pause):
            pause = self._end_late()

    def _end_late(self) -> Optional[float]:
        """Ends the calls that have waited for too long. Returns after how many seconds
        to look again, or None if nobody waits."""
        with self._lock:
            now = time.monotonic()
            late = [call for call, since in self._waiting.items() if now - since >= self.limit]
            for call in late:
                del self._waiting[call]
            if self._waiting:
                pause: Optional[float] = min(self._waiting.values()) + self.limit - now
            else:
                self._thread = pause = None
        for call in late:
            call.cancel()
        return pause
