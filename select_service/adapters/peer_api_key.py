"""API key sent to other selectors, read from its file for each request."""

from pathlib import Path

from select_service.adapters.http_error import HttpError
from select_service.auth.client_credentials import read_api_key
from select_service.base.token_file import TokenFile

READ_S = 5.0
"""Time limit of a request for reading the file, in seconds."""


def peer_key_file(path: Path) -> TokenFile:
    """Return the reader of the API key file."""
    return TokenFile("peer_api_key_file", path, read_api_key)


async def authorization_header(key_file: TokenFile) -> str:
    """Return the value of the Authorization header.  Raises HttpError."""
    try:
        return f"Bearer {await key_file.read_token(READ_S)}"
    except ValueError as error:
        raise HttpError("unreadable", f"API key for peers: {error}") from None
    except TimeoutError:
        text = f"API key for peers: no answer from {key_file.path} within {READ_S:g} s"
        raise HttpError("unreadable", text) from None
