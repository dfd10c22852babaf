"""Look-ups in the caches of LMCache, by `POST /lookup` of its controller.

The controller hashes the tokens itself.  Its answer has, by engine, the storage and the number of
leading tokens there.

Source: lmcache/v1/api_server/__main__.py and cache_controller/controllers/kv_controller.py,
https://github.com/LMCache/LMCache
"""

import hashlib
from time import monotonic
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from select_service.adapters.http_get import HttpClient
from select_service.adapters.shared_caches.cache_source import (
    ANSWER_BYTES_MAX,
    PURPOSE,
    FoundTokens,
    LookedUpPrompt,
    UnusableAnswer,
)
from select_service.core.shared_caches.prefix_memory import PrefixMemory
from select_service.net.http_client.http_session import HttpRequest

REQUEST_S_MAX = 1.0
ENGINES_MAX = 4096
"""Maximum number of engines in an answer."""
LOCAL = "Local"
"""Beginning of the names of storages that only their own engine reads."""
Sharing: TypeAlias = Literal["p2p", "remote"]
"""`p2p`: engines read each other's storage; `remote`: only a common remote storage is shared."""


class _Answer(msgspec.Struct):
    layout_info: dict[str, tuple[str, Annotated[int, Meta(ge=0)]]]


_decode = msgspec.json.Decoder(_Answer).decode


class LMCacheSource:
    """Caches of engines with LMCache."""

    def __init__(self, http: HttpClient, url: str, sharing: Sharing) -> None:
        self._memory = PrefixMemory[FoundTokens]()
        """Answers, by the hash of a prompt."""
        self._http = http
        self._url = url.rstrip("/") + "/lookup"
        self._is_p2p = sharing == "p2p"

    async def find_tokens(self, prompt: LookedUpPrompt) -> FoundTokens:
        """See `CacheSource`."""
        # A hash, as the memory would otherwise hold whole prompts.
        name = hashlib.sha256(np.array(prompt.tokens, "<u4").tobytes()).digest()
        if (known := self._memory.find(name, monotonic())) is not None:
            return known._replace(requests=0)
        request = HttpRequest(
            "POST",
            self._url,
            {"accept": "application/json", "content-type": "application/json"},
            msgspec.json.encode({"tokens": prompt.tokens}),
        )
        body = await self._http.send_checked(
            request, bytes_max=ANSWER_BYTES_MAX, timeout_s=REQUEST_S_MAX, purpose=PURPOSE
        )
        found = self._read_answer(_decode(body).layout_info, len(prompt.tokens))
        self._memory.put(name, found, monotonic())
        return found

    def _read_answer(self, found: dict[str, tuple[str, int]], n_tokens: int) -> FoundTokens:
        if len(found) > ENGINES_MAX:
            raise UnusableAnswer(f"{len(found)} engines in an answer (limit {ENGINES_MAX})")
        shared, own = 0, dict[str, int]()
        for engine, (storage, tokens) in found.items():
            # An overcount would credit tokens that the cache does not hold.
            if tokens > n_tokens:
                raise UnusableAnswer(f"{tokens} tokens of {n_tokens} requested")
            is_local = storage.startswith(LOCAL)
            if self._is_p2p or not is_local:
                shared = max(shared, tokens)
            # The controller names one engine for each chunk, so that with several engines none
            # needs to hold the whole prefix itself.
            if is_local and len(found) == 1 and tokens:
                own[engine] = tokens
        return FoundTokens(shared, own, requests=1)
