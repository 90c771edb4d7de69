"""Bearer tokens: when one is asked for, and which. No I/O but what the caller's source
does; the clients wait for it, each in its way."""

from __future__ import annotations

import base64
import json
import time
from typing import Optional, Tuple

import grpc

from .errors import FanfareError

# How many seconds a token must still be good when a call begins.
_MARGIN = 10.0

Metadata = Tuple[Tuple[str, str], ...]


class TokenCache:
    """The token that the source returned last, so that calls that are all refused at
    once fetch one new token, not one each. Whoever uses it holds the client's lock for
    tokens meanwhile."""

    def __init__(self) -> None:
        self._last = ""

    def known(self, refused: str) -> Optional[str]:
        """Returns a token that another call has fetched since one was refused."""
        return self._last if refused and self._last != refused else None

    def take(self, token: str) -> None:
        if not isinstance(token, str):
            raise TypeError(f"the source returned {type(token).__name__}, not str")
        self._last = token


class Access:
    """How one thing that calls again and again shows who it is. Without a source of
    tokens it does not."""

    def __init__(self, has_source: bool) -> None:
        self._has_source = has_source
        self._used = ""
        # The token that the server did not take, until the next one is used.
        self.refused = ""
        # True since a token was refused, until the server takes a call.
        self._renewed = False

    def metadata(self, token: Optional[str]) -> Metadata:
        """Returns what to send with the next call."""
        if token is None:
            return ()
        self._used, self.refused = token, ""
        return (("authorization", "Bearer " + token),)

    def renews(self, error: Optional[FanfareError]) -> bool:
        """Whether to try once more, with another token, after an error."""
        if error is None or error.code is not grpc.StatusCode.UNAUTHENTICATED:
            return False
        if not self._has_source or self._renewed:
            return False
        self.refused, self._renewed = self._used, True
        return True

    def accepted(self) -> None:
        """Takes note that the server took a call."""
        self._renewed = False


def no_token(cause: Exception) -> FanfareError:
    """The error of a call that was not made, since there is no token for it."""
    return FanfareError(grpc.StatusCode.UNKNOWN, f"get a token: {cause}")


def expires_soon(token: str) -> bool:
    """Whether a token is a JSON Web Token (RFC 7519) whose expiration time is near or
    past. Verifies nothing."""
    parts = token.split(".") if isinstance(token, str) else ()
    if len(parts) != 3:
        return False
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return False
    expires = claims.get("exp") if isinstance(claims, dict) else None
    return isinstance(expires, (int, float)) and expires < time.time() + _MARGIN
