"""Checks of answers of shared caches: Mooncake's master and LMCache's controller."""

from typing import Any

from select_service.adapters.http_get import HttpClient
from select_service.adapters.shared_caches.cache_source import (
    CacheSource,
    FoundTokens,
    LookedUpPrompt,
    UnusableAnswer,
)
from select_service.adapters.shared_caches.lmcache_source import LMCacheSource
from select_service.adapters.shared_caches.mooncake_source import MooncakeSource
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.shared_caches.page_keys import KeyLayout, hash_pages

BLOCK_SIZE, N_TOKENS = 4, 10
PROMPT = LookedUpPrompt(list(range(N_TOKENS)), BLOCK_SIZE, False)


class AnsweringClient(HttpClient):
    """Client that receives the same bytes for every request."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def get_body(self, *_: Any, **__: Any) -> bytes:
        return self._content

    async def send_checked(self, *_: Any, **__: Any) -> bytes:
        return self._content


def find_tokens(source: CacheSource) -> FoundTokens:
    """Return the result of a look-up with a client that never waits."""
    try:
        source.find_tokens(PROMPT).send(None)  # type: ignore[attr-defined]
    except StopIteration as end:
        found: FoundTokens = end.value
        return found
    raise AssertionError("the look-up waits")


def check_stores(data: bytes) -> None:
    """Look up a prompt, and require that no more tokens are found than the prompt has.

    The first byte chooses the cache.
    """
    if not data:
        return
    http = AnsweringClient(data[1:])
    sources: list[CacheSource] = [
        MooncakeSource(http, "http://master:9003", KeyLayout()),
        LMCacheSource(http, "http://controller:9000", "p2p"),
        LMCacheSource(http, "http://controller:9000", "remote"),
    ]
    try:
        found = find_tokens(sources[data[0] % len(sources)])
    except (*DECODE_ERRORS, UnusableAnswer):
        return
    assert all(0 <= tokens <= N_TOKENS for tokens in (found.tokens, *found.own_tokens.values()))


def store_seeds() -> list[bytes]:
    name = hash_pages(PROMPT.tokens, BLOCK_SIZE, False)[0].hex()
    keys = ",".join(f'"{name}{end}":{{"ok":true}}' for end in KeyLayout().suffixes())
    answers = [
        f'{{"success":true,"data":{{{keys}}}}}'.encode(),
        b'{"success":false}',
        b'{"layout_info":{"engine-1":["LocalCPUBackend",8],"engine-2":["RemoteBackend",4]}}',
        b'{"layout_info":{"engine-1":["LocalCPUBackend",11]}}',
        b"[" * 3000,
    ]
    return [bytes([n]) + answer for n in range(3) for answer in answers]
