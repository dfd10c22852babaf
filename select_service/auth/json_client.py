"""Single HTTP request of a command to a service, with the command's credentials."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from select_service.auth.client_credentials import ClientCredentials
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.http_session import HttpRequest, HttpSession

ANSWER_BYTES_MAX = 16 << 20
_FOREIGN = "the response is not from a select-service: give another --url"


class FetchError(Exception):
    """No valid response; the message is a one-line reason."""


def fetch_json(
    url: str, credentials: ClientCredentials, timeout_s: float, body: bytes | None = None
) -> Any:
    """Return the decoded JSON response.  body: JSON to POST; None means GET.  Raises FetchError."""
    request = HttpRequest("GET", url, token_file=credentials.key_file)
    if body is not None:
        headers = {"content-type": "application/json"}
        request = request._replace(method="POST", headers=headers, body=body)

    async def fetch() -> bytes:
        async with HttpSession(tls=credentials.tls) as session:
            return await session.fetch_body(
                request, bytes_max=ANSWER_BYTES_MAX, timeout_s=timeout_s
            )

    try:
        return json.loads(asyncio.run(fetch()))
    except HttpError as error:
        raise FetchError(_describe_error(error, credentials)) from None
    except (ValueError, RecursionError):
        raise FetchError(_FOREIGN) from None


def _describe_error(error: HttpError, presented: ClientCredentials) -> str:
    """Return the one-line reason of a failed request, with a remedy."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        if presented.key_file is None:
            return "API key required: give --api-key-file FILE"
        return f"unknown API key in `{presented.key_file}`: give another --api-key-file"
    if error.status:
        try:
            return str(json.loads(error.body)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"HTTP status {error.status}, not from a select-service: check --url"
    match error.failure:
        case "refused":
            return "connection refused: start the service, or give another --url"
        case "timeout":
            return "no response in time: check that the service is running, and --url"
        case "closed" | "too_large":
            return _FOREIGN
        case "unreadable":
            return f"{error}: {_FOREIGN}"
        case _:
            return f"{error}: check --url, and the --tls flags for https"
