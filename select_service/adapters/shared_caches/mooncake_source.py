"""Look-ups in a Mooncake store, by `GET /batch_query_keys` of its master.

Source: mooncake-store/src/master_admin_service.cpp, https://github.com/kvcache-ai/Mooncake
"""

from time import monotonic

import msgspec

from select_service.adapters.http_get import HttpClient
from select_service.adapters.shared_caches.cache_source import (
    ANSWER_BYTES_MAX,
    PURPOSE,
    FoundTokens,
    LookedUpPrompt,
    UnusableAnswer,
)
from select_service.core.shared_caches.page_keys import KeyLayout, hash_pages
from select_service.core.shared_caches.prefix_memory import PrefixMemory

KEYS_BYTES_MAX = 7680
"""Length of the keys of a request: its line has to fit into the usual limit of 8 KiB."""
REQUEST_S_MAX = 1.0


class _KeyResult(msgspec.Struct):
    ok: bool = False


class _BatchAnswer(msgspec.Struct):
    success: bool
    data: dict[str, _KeyResult] = {}


_decode = msgspec.json.Decoder(_BatchAnswer).decode


class MooncakeSource:
    """Mooncake store of SGLang engines with HiCache."""

    def __init__(self, http: HttpClient, url: str, layout: KeyLayout) -> None:
        self._memory = PrefixMemory[bool]()
        """Whether the store holds a page."""
        self._http = http
        self._url = url.rstrip("/")
        self._prefix, self._suffixes = layout.prefix(), layout.suffixes()
        self._pages_per_request = max(1, KEYS_BYTES_MAX // layout.page_bytes())

    async def find_tokens(self, prompt: LookedUpPrompt) -> FoundTokens:
        """See `CacheSource`.  Queries follow each other until a page is missing."""
        names = hash_pages(prompt.tokens, prompt.block_size, prompt.is_eagle)
        held = requests = 0
        while held < len(names):
            is_held = self._memory.find(names[held], monotonic())
            # Only unknown pages are queried: a long prompt goes on where an earlier look-up ended.
            if is_held is None:
                await self._query_pages(names[held : held + self._pages_per_request])
                requests += 1
                continue
            if not is_held:
                break
            held += 1
        return FoundTokens(held * prompt.block_size, requests=requests)

    async def _query_pages(self, names: list[bytes]) -> None:
        """Store for each page whether all of its parts are in the cache."""
        keys = [
            [f"{self._prefix}{name.hex()}{suffix}" for suffix in self._suffixes] for name in names
        ]
        # The master splits at plain commas, and takes an encoded comma as part of a key.
        listed = ",".join(key for of_page in keys for key in of_page)
        body = await self._http.get_body(
            f"{self._url}/batch_query_keys?keys={listed}",
            accept="application/json",
            bytes_max=ANSWER_BYTES_MAX,
            timeout_s=REQUEST_S_MAX,
            purpose=PURPOSE,
        )
        answer = _decode(body)
        if not answer.success:
            raise UnusableAnswer("the master reports `success: false`")
        now, absent = monotonic(), _KeyResult()
        for name, of_page in zip(names, keys, strict=True):
            # A page without one of its parts cannot be loaded.
            is_held = all(answer.data.get(key, absent).ok for key in of_page)
            self._memory.put(name, is_held, now)
