"""One request of a command to a service, with what the command presents.

No redirect is followed: the key belongs to the service that was named, and to nobody whom an
answer names.
"""

import json
from http import HTTPStatus
from http.client import HTTPException
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError
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
    headers = {"content-type": "application/json"} if body is not None else {}
    try:
        if presented.key_file is not None:
            headers["authorization"] = f"Bearer {key_in(presented.key_file)}"
        context = None if presented.tls is None else presented.tls.context
        opener = build_opener(_Nowhere, HTTPSHandler(context=context))
        with opener.open(Request(url, body, headers), timeout=timeout_s) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except HTTPError as error:
        raise NoAnswer(_refusal(error, presented)) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NoAnswer(_fault(reason)) from None


def _refusal(error: HTTPError, presented: Presented) -> str:
    if error.code == HTTPStatus.UNAUTHORIZED:
        if presented.key_file is None:
            return "it asks for a key: give --api-key-file FILE"
        return f"it does not know the key in `{presented.key_file}`: give another --api-key-file"
    try:
        return str(json.loads(error.read(REFUSAL_BYTES_MAX))["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP status {error.code}: is it a select-service? Else give another --url"


def _fault(reason: object) -> str:
    """Why there is no answer, and what to do."""
    if isinstance(reason, ConnectionRefusedError):
        return "connection refused: is the service running there? Else give another --url"
    if isinstance(reason, gaierror):
        return "no such host: give another --url"
    if isinstance(reason, TimeoutError):
        return "no answer in time: is it a select-service? Else give another --url"
    if isinstance(reason, SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message}): give --tls-ca FILE"
    if isinstance(reason, SSLError):
        return f"TLS failed ({reason.reason}): does it speak https, and ask for a certificate?"
    if isinstance(reason, HTTPException | ValueError):
        return "the answer is not one of a select-service: give another --url"
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
