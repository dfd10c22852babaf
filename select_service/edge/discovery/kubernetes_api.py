"""Reads lists and watches of an API server.  kubernetes-asyncio knows accounts, kubeconfigs and
their plugins.

Its models are not used: a thousand pods would be a second of work.  Documents are taken as bytes,
and what is needed of them is decoded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from select_service.errors import PortableError
from select_service.kubernetes_account import (
    UNREADABLE,
    NoCluster,
    configuration_of,
    namespace_of,
    one_line,
)
from select_service.kubernetes_requests import KubernetesRequests
from select_service.outgoing.connection_pool import Answer
from select_service.outgoing.request_error import RequestError
from select_service.unreadable_json import UNREADABLE as UNREADABLE_JSON

LIST_BYTES_MAX = 16 << 20
"""Of one page of a list."""
LINE_BYTES_MAX = 4 << 20
"""Of one event of a watch."""
CHUNK_BYTES = 1 << 14
"""Of a watch, split into lines at once."""
STATUS_BYTES_MAX = 4096
"""Of a refusal."""
ANSWER_S = 20.0
"""Until the head of an answer, and until a page is complete."""


class KubeFault(PortableError):
    """status: of HTTP; 0: there was no complete answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class KubeApi:
    """Belongs to one event loop.  After a fault all is loaded anew: token, CA, kubeconfig."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """kubeconfig: None: the service account of this pod"""
        self._kubeconfig = kubeconfig
        self._requests: KubernetesRequests | None = None

    async def namespace(self) -> str:
        """That of this pod, or of the current context.  Raises KubeFault."""
        try:
            return await asyncio.to_thread(namespace_of, self._kubeconfig)
        except NoCluster as error:
            raise KubeFault(0, f"which namespace? {error}") from None

    async def page(self, path: str) -> bytes:
        """All of an answer.  Raises KubeFault."""
        try:
            async with asyncio.timeout(ANSWER_S), self._answered(path) as answer:
                return await answer.body(LIST_BYTES_MAX)
        except TimeoutError:
            raise KubeFault(0, f"no complete answer within {ANSWER_S:g} s") from None

    async def events(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        """The lines of a watch, those together that came together: none when it begins.
        Raises KubeFault.

        silence_s: nothing came for so long: the connection is taken for dead
        """
        rest = bytearray()
        async with self._answered(path) as answer:
            yield []
            while chunk := await self._chunk(answer, silence_s):
                for begin in range(0, len(chunk), CHUNK_BYTES):
                    first, *lines = chunk[begin : begin + CHUNK_BYTES].split(b"\n")
                    rest += first
                    if len(rest) > LINE_BYTES_MAX:
                        raise KubeFault(0, f"an event of more than {LINE_BYTES_MAX} bytes")
                    if lines:
                        whole, rest = [bytes(rest), *lines[:-1]], bytearray(lines[-1])
                        yield [line for line in whole if line]

    async def _chunk(self, answer: Answer, silence_s: float) -> bytes:
        try:
            async with asyncio.timeout(silence_s):
                return await answer.read_some()
        except TimeoutError:
            raise KubeFault(0, f"nothing was heard for {silence_s:g} s") from None

    @contextlib.asynccontextmanager
    async def _answered(self, path: str) -> AsyncIterator[Answer]:
        try:
            requests = await self._ready()
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(ANSWER_S):
                    answer = await stack.enter_async_context(
                        requests.request("GET", path, {"accept": "application/json"})
                    )
                    if answer.status != 200:
                        content = await answer.read_some()
                        text = f"status {answer.status}: {_told(content)}"
                        raise KubeFault(answer.status, text)
                yield answer
        except TimeoutError:
            await self.close()
            raise KubeFault(0, f"no answer within {ANSWER_S:g} s") from None
        except (RequestError, OSError) as error:
            await self.close()
            raise KubeFault(0, f"no answer: {one_line(error)}") from None
        except KubeFault:
            await self.close()
            raise

    async def _ready(self) -> KubernetesRequests:
        """Raises KubeFault."""
        if self._requests is not None:
            return self._requests
        try:
            configuration = await configuration_of(self._kubeconfig)
            self._requests = await asyncio.to_thread(KubernetesRequests, configuration)
        except (NoCluster, RequestError, *UNREADABLE) as error:
            raise KubeFault(0, f"no way to a cluster: {one_line(error)}") from None
        return self._requests

    async def close(self) -> None:
        """The next call opens it again."""
        requests, self._requests = self._requests, None
        if requests is not None:
            await requests.close()


class _Status(msgspec.Struct):
    message: str = ""


def _told(content: bytes) -> str:
    """Return the message of a `Status`, or the beginning of whatever it is."""
    with contextlib.suppress(*UNREADABLE_JSON):
        message = msgspec.json.decode(content[:STATUS_BYTES_MAX], type=_Status).message
        if message:
            return message[:300]
    return content[:100].decode(errors="replace")
