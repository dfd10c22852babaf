"""One request of a command to a service, with what the command presents.

No redirect is followed: the key belongs to the service that was named, and to nobody whom an
answer names.
"""

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from select_service.access.presenting import Presented, key_in
from select_service.urls import HTTP_SCHEMES

ANSWER_BYTES_MAX = 16 << 20
REFUSAL_BYTES_MAX = 1 << 16


class NoAnswer(Exception):
    """Why there is none, in one line."""


class _Nowhere(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """The redirect is the answer, which is a refusal then."""


def asked(url: str, presented: Presented, timeout_s: float, body: bytes | None = None) -> Any:
    """What the service says, out of JSON.  body: of a POST; None: a GET.  Raises NoAnswer."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in HTTP_SCHEMES)):
        raise NoAnswer("not http:// or https://")
    headers = {"content-type": "application/json"} if body else {}
    try:
        if presented.key_file is not None:
            headers["authorization"] = f"Bearer {key_in(presented.key_file)}"
        context = None if presented.tls is None else presented.tls.context
        opener = build_opener(_Nowhere, HTTPSHandler(context=context))
        with opener.open(Request(url, body, headers), timeout=timeout_s) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except HTTPError as error:
        raise NoAnswer(_refusal(error)) from None
    except (OSError, ValueError) as error:
        raise NoAnswer(str(error.reason if isinstance(error, URLError) else error)) from None


def _refusal(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read(REFUSAL_BYTES_MAX))["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP status {error.code}"
