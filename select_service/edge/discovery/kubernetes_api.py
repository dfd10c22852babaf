"""Reads lists and watches of an API server with kubernetes-asyncio, which knows accounts,
kubeconfigs and their plugins.

Its models are not used: a thousand pods would be a second of work.  Documents are taken as bytes,
and what is needed of them is decoded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from select_service.errors import PortableError
from select_service.kubernetes_account import (
    UNREADABLE,
    NoCluster,
    configuration_of,
    namespace_of,
    one_line,
)

LIST_BYTES_MAX = 16 << 20
"""Of one page of a list."""
LINE_BYTES_MAX = 4 << 20
"""Of one event of a watch."""
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
        self._client: Any = None

    async def namespace(self) -> str:
        """That of this pod, or of the current context.  Raises KubeFault."""
        try:
            return await asyncio.to_thread(namespace_of, self._kubeconfig)
        except NoCluster as error:
            raise KubeFault(0, f"which namespace? {error}") from None

    async def page(self, path: str) -> bytes:
        """All of an answer.  Raises KubeFault."""
        content = bytearray()
        try:
            async with asyncio.timeout(ANSWER_S), self._answered(path) as answer:
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) > LIST_BYTES_MAX:
                        raise KubeFault(0, f"a page of more than {LIST_BYTES_MAX} bytes")
        except TimeoutError:
            raise KubeFault(0, f"no complete answer within {ANSWER_S:g} s") from None
        return bytes(content)

    async def events(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        """The lines of a watch, those together that came together: none when it begins.
        Raises KubeFault.

        silence_s: nothing came for so long: the connection is taken for dead
        """
        rest = b""
        async with self._answered(path) as answer:
            yield []
            while chunk := await self._chunk(answer, silence_s):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_BYTES_MAX:
                    raise KubeFault(0, f"an event of more than {LINE_BYTES_MAX} bytes")
                if lines:
                    yield [line for line in lines if line]

    async def _chunk(self, answer: Any, silence_s: float) -> bytes:
        try:
            async with asyncio.timeout(silence_s):
                chunk: bytes = await answer.content.readany()
                return chunk
        except TimeoutError:
            raise KubeFault(0, f"nothing was heard for {silence_s:g} s") from None

    @contextlib.asynccontextmanager
    async def _answered(self, path: str) -> AsyncIterator[Any]:
        try:
            client = await self._ready()
            async with asyncio.timeout(ANSWER_S):
                answer = await client.call_api(
                    path,
                    "GET",
                    header_params={"Accept": "application/json"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _request_timeout=aiohttp.ClientTimeout(total=None),
                )
            async with answer:
                if answer.status != 200:
                    content = await answer.content.read(4096)
                    raise KubeFault(answer.status, f"status {answer.status}: {_told(content)}")
                yield answer
        except TimeoutError:
            await self.close()
            raise KubeFault(0, f"no answer within {ANSWER_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            await self.close()
            raise KubeFault(0, f"no answer: {one_line(error)}") from None
        except KubeFault:
            await self.close()
            raise

    async def _ready(self) -> Any:
        """Raises KubeFault."""
        if self._client is not None:
            return self._client
        try:
            configuration = await configuration_of(self._kubeconfig)
            from kubernetes_asyncio.client.api_client import ApiClient

            self._client = ApiClient(configuration)
        except (NoCluster, *UNREADABLE) as error:
            raise KubeFault(0, f"no way to a cluster: {one_line(error)}") from None
        return self._client

    async def close(self) -> None:
        """The next call opens it again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _told(content: bytes) -> str:
    """The message of a `Status`, or the beginning of whatever it is."""
    with contextlib.suppress(ValueError):
        document = yaml.safe_load(content)
        if isinstance(document, dict) and document.get("message"):
            return str(document["message"])[:300]
    return content[:100].decode(errors="replace")
