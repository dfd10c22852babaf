"""Single HTTP request of a command to a service, with the command's credentials.

Redirects are not followed: the key must only be sent to the given service.
"""

import json
from http import HTTPStatus
from http.client import HTTPException
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from select_service.auth.client_credentials import ClientCredentials, read_api_key
from select_service.net.urls import HTTP_SCHEMES

ANSWER_BYTES_MAX = 16 << 20
REFUSAL_BYTES_MAX = 1 << 16


class FetchError(Exception):
    """No valid response; the message is a one-line reason."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Ignore the redirect, so that the redirecting response counts as an error."""


def fetch_json(
    url: str, credentials: ClientCredentials, timeout_s: float, body: bytes | None = None
) -> Any:
    """Return the decoded JSON response.  body: JSON to POST; None means GET.  Raises FetchError."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in HTTP_SCHEMES)):
        raise FetchError("the URL is neither http:// nor https://: give another --url")
    headers = {"content-type": "application/json"} if body is not None else {}
    try:
        if credentials.key_file is not None:
            headers["authorization"] = f"Bearer {read_api_key(credentials.key_file)}"
        context = None if credentials.tls is None else credentials.tls.context
        # urllib would resend the authorization header to the target of a redirect.
        opener = build_opener(_NoRedirects, HTTPSHandler(context=context))
        with opener.open(Request(url, body, headers), timeout=timeout_s) as answer:
            # The limit protects against endless bodies of a server that is not a select-service.
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except HTTPError as error:
        raise FetchError(_describe_http_error(error, credentials)) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise FetchError(_describe_failure(reason)) from None


def _describe_http_error(error: HTTPError, presented: ClientCredentials) -> str:
    """Return the one-line reason of an HTTP error."""
    if error.code == HTTPStatus.UNAUTHORIZED:
        if presented.key_file is None:
            return "API key required: give --api-key-file FILE"
        return f"unknown API key in `{presented.key_file}`: give another --api-key-file"
    try:
        return str(json.loads(error.read(REFUSAL_BYTES_MAX))["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP status {error.code}, not from a select-service: check --url"


def _describe_failure(reason: object) -> str:
    """Return the one-line reason of a failed request, with a remedy."""
    if isinstance(reason, ConnectionRefusedError):
        return "connection refused: start the service, or give another --url"
    if isinstance(reason, gaierror):
        return "unknown host: give another --url"
    if isinstance(reason, TimeoutError):
        return "no response in time: check that the service is running, and --url"
    if isinstance(reason, SSLCertVerificationError):
        return f"server certificate not trusted ({reason.verify_message}): give --tls-ca FILE"
    if isinstance(reason, SSLError):
        return f"TLS handshake failed ({reason.reason}): check for https and a client certificate"
    if isinstance(reason, HTTPException | ValueError):
        return "the response is not from a select-service: give another --url"
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
