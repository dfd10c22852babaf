"""Client for lists and watches of a Kubernetes API server.

kubernetes-asyncio handles service accounts, kubeconfigs and their plugins.  Its models are not
used: a thousand pods would take a second.  Responses are read as bytes, and only the needed fields
are decoded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from select_service.base.decode_errors import DECODE_ERRORS as UNREADABLE_JSON
from select_service.net.http_client.connection_pool import HttpResponse
from select_service.net.kubernetes_config import (
    ClusterUnavailable,
    find_namespace,
)
from select_service.net.kubernetes_session import KubernetesError, KubernetesSession

LIST_BYTES_MAX = 16 << 20
"""Size limit of a list page."""
LINE_BYTES_MAX = 4 << 20
"""Size limit of a watch event."""
CHUNK_BYTES = 1 << 14
"""Number of watch bytes split into lines at once."""
STATUS_BYTES_MAX = 4096
"""Size limit of the decoded part of an error response."""
ANSWER_S = 20.0
"""Time limit for a response head and for a complete page, in seconds."""


class KubernetesWatchClient:
    """Client of one API server.  Belongs to an event loop.

    After an error, token, CA and kubeconfig are loaded again.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        """kubeconfig: path of the kubeconfig; None means the service account of this pod"""
        self._kubeconfig = kubeconfig
        self._session = KubernetesSession(kubeconfig)

    async def own_namespace(self) -> str:
        """Return the namespace of this pod, or of the current context.

        Raises KubernetesError.
        """
        try:
            return await asyncio.to_thread(find_namespace, self._kubeconfig)
        except ClusterUnavailable as error:
            raise KubernetesError(0, f"no namespace: {error}") from None

    async def get_page(self, path: str) -> bytes:
        """Return the complete body of a GET response.  Raises KubernetesError."""
        try:
            async with asyncio.timeout(ANSWER_S), self._open_response(path) as answer:
                return await answer.read_body(LIST_BYTES_MAX)
        except TimeoutError:
            raise KubernetesError(0, f"no complete answer within {ANSWER_S:g} s") from None

    async def watch_events(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        """Yield the lines of a watch in groups as received; the first group is empty.

        silence_s: seconds without data after which the connection counts as dead
        Raises KubernetesError.
        """
        rest = bytearray()
        async with self._open_response(path) as answer:
            yield []
            while chunk := await self._read_chunk(answer, silence_s):
                for begin in range(0, len(chunk), CHUNK_BYTES):
                    # A watch line may span chunks: `rest` holds its unfinished start.
                    first, *lines = chunk[begin : begin + CHUNK_BYTES].split(b"\n")
                    rest += first
                    if len(rest) > LINE_BYTES_MAX:
                        raise KubernetesError(0, f"watch event exceeds {LINE_BYTES_MAX} bytes")
                    if lines:
                        whole, rest = [bytes(rest), *lines[:-1]], bytearray(lines[-1])
                        yield [line for line in whole if line]

    async def _read_chunk(self, answer: HttpResponse, silence_s: float) -> bytes:
        try:
            async with asyncio.timeout(silence_s):
                return await answer.read_some()
        except TimeoutError:
            raise KubernetesError(0, f"no data for {silence_s:g} s") from None

    @contextlib.asynccontextmanager
    async def _open_response(self, path: str) -> AsyncIterator[HttpResponse]:
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(ANSWER_S):
                    answer = await stack.enter_async_context(
                        self._session.open_response("GET", path, {"accept": "application/json"})
                    )
                    if answer.status != 200:
                        content = await answer.read_some()
                        text = f"status {answer.status}: {_status_text(content)}"
                        raise KubernetesError(answer.status, text)
                yield answer
        except (KubernetesError, ClusterUnavailable, TimeoutError) as error:
            await self._session.close()
            if isinstance(error, TimeoutError):
                text = f"no answer within {ANSWER_S:g} s"
                raise KubernetesError(0, text) from None
            if isinstance(error, ClusterUnavailable):
                raise KubernetesError(0, f"no access to a cluster: {error}") from None
            raise

    async def close(self) -> None:
        """Close the client; the next call opens a new client."""
        await self._session.close()


class _Status(msgspec.Struct):
    message: str = ""


def _status_text(content: bytes) -> str:
    """Return the message of a `Status` object, or the start of any other body."""
    with contextlib.suppress(*UNREADABLE_JSON):
        message = msgspec.json.decode(content[:STATUS_BYTES_MAX], type=_Status).message
        if message:
            return message[:300]
    return content[:100].decode(errors="replace")
