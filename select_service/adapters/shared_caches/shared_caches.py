"""Shared caches of all models: look-ups within a time limit, and their counters.

A request waits for its look-up for a limited time only.  A late look-up goes on without the
request: its result serves the next prompts with the prefix.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from time import monotonic

from select_service.adapters.http_get import HttpClient
from select_service.adapters.shared_caches.cache_source import (
    CacheSource,
    FoundTokens,
    LookedUpPrompt,
    UnusableAnswer,
)
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.shared_caches.cache_status import SharedCacheStatus
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.core.shared_caches.source_breaker import SourceBreaker
from select_service.net.http_client.http_error import HttpError
from select_service.schemas.prompts import PromptFields
from select_service.schemas.shared_caches import CacheKind, SharedOutcome

LOOKUPS_MAX = 32
"""Maximum number of look-ups of a model that run at once; further look-ups are not begun."""
LOOKUP_S_MAX = 2.0
"""Time limit of a look-up, also after the request went on without a result, s."""
TOKENS_MAX = 32_768
"""Leading tokens of a prompt that are looked up; more would hold the event loop too long."""
ERROR_CHARS_MAX = 200
LATEST_SHARE = 0.125
"""Share of the latest look-up in the moving mean of the time of a request."""

log = logging.getLogger("select_service.shared_caches")


class ModelCache:
    """Shared cache of a model."""

    def __init__(
        self,
        model_name: str,
        kind: CacheKind,
        url: str,
        source: CacheSource,
        link_gbps: float | None,
    ) -> None:
        """link_gbps: speed of the cache's own link; None means that the ranks' links decide"""
        self.model_name = model_name
        self._kind, self._url = kind, url
        self._source = source
        self._link_gbps = link_gbps
        self._breaker = SourceBreaker()
        self._outcomes: Counter[SharedOutcome] = Counter()
        self._found_tokens = 0
        self._waited_s = 0.0
        self._waited = 0
        self._is_answering: bool | None = None
        self._changed_at = 0.0
        self._last_error: str | None = None
        self._error_at = 0.0
        self._request_s: float | None = None
        self._running: set[asyncio.Task[FoundTokens | None]] = set()

    async def look_up(self, prompt: LookedUpPrompt | None, limit_s: float) -> SharedHits:
        """Return the tokens of a prompt in the cache, after `limit_s` at the latest.  Never raises.

        prompt: None if its keys cannot be computed
        """
        found, outcome = FoundTokens(), self._refusal(prompt)
        if outcome is None:
            assert prompt is not None
            found, outcome = await self._wait_for(prompt, limit_s)
        self._outcomes[outcome] += 1
        self._found_tokens += found.tokens
        return SharedHits(outcome, found.tokens, found.own_tokens, self._link_gbps)

    def _refusal(self, prompt: LookedUpPrompt | None) -> SharedOutcome | None:
        if prompt is None:
            return "unsupported"
        # Checked before the breaker, so that no look-up that is refused here uses up its trial.
        if len(self._running) >= LOOKUPS_MAX:
            return "busy"
        return None if self._breaker.admit(monotonic()) else "open"

    async def _wait_for(
        self, prompt: LookedUpPrompt, limit_s: float
    ) -> tuple[FoundTokens, SharedOutcome]:
        begun = monotonic()
        task = asyncio.create_task(self._find_tokens(prompt))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Unlike `asyncio.wait_for`, this does not cancel the late look-up.
        await asyncio.wait((task,), timeout=limit_s)
        self._waited_s += monotonic() - begun
        self._waited += 1
        found = task.result() if task.done() and not task.cancelled() else None
        if self._is_answering != (found is not None):
            self._is_answering, self._changed_at = found is not None, monotonic()
        # Late look-ups count as failures: one that is always late costs each request the limit.
        if found is None:
            self._record_failure()
            return FoundTokens(), "failed" if task.done() else "timeout"
        if self._breaker.is_open:
            log.info("shared cache answers again", extra={"fields": self._log_fields()})
        self._breaker.record_success()
        return found, "hit" if found.tokens or found.own_tokens else "miss"

    def _record_failure(self) -> None:
        was_open = self._breaker.is_open
        self._breaker.record_failure(monotonic())
        if self._breaker.is_open and not was_open:
            fields = self._log_fields() | {"error": self._last_error or "answers come too late"}
            log.warning("shared cache not used for some seconds", extra={"fields": fields})

    def _log_fields(self) -> dict[str, str]:
        return {"model_name": self.model_name, "url": self._url}

    async def _find_tokens(self, prompt: LookedUpPrompt) -> FoundTokens | None:
        """Return the tokens in the cache; None after an error."""
        begun = monotonic()
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                found = await self._source.find_tokens(prompt)
            if found.requests:
                self._record_request_time((monotonic() - begun) / found.requests)
            return found
        except TimeoutError:
            error = f"no complete look-up within {LOOKUP_S_MAX:g} s"
        except HttpError as failure:
            error = str(failure)
        except (*DECODE_ERRORS, UnusableAnswer) as failure:
            error = f"the answer is unusable: {failure}"
        self._last_error, self._error_at = error[:ERROR_CHARS_MAX], monotonic()
        return None

    def _record_request_time(self, request_s: float) -> None:
        mean = request_s if self._request_s is None else self._request_s
        self._request_s = mean + LATEST_SHARE * (request_s - mean)

    def status(self) -> SharedCacheStatus:
        now = monotonic()
        return SharedCacheStatus(
            self.model_name,
            self._kind,
            self._url,
            dict(self._outcomes),
            self._found_tokens,
            self._waited_s,
            len(self._running),
            self._breaker.is_open,
            self._last_error,
            self._is_answering,
            None if self._is_answering is None else now - self._changed_at,
            None if self._last_error is None else now - self._error_at,
            self._request_s,
            self._waited,
        )

    async def close(self) -> None:
        """Cancel the look-ups."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


class SharedCaches:
    """Shared caches by model.  Belongs to the event loop."""

    def __init__(self, caches: Iterable[ModelCache], http: HttpClient, limit_s: float) -> None:
        """Own the caches, and the client of their sources.

        limit_s: time for which a request waits for its look-up, s
        """
        self._http = http
        self._by_model: Mapping[str, ModelCache] = {each.model_name: each for each in caches}
        self._limit_s = limit_s

    def serves(self, model_name: str) -> bool:
        """Return whether prompts of a model are looked up."""
        return model_name in self._by_model

    async def look_up(self, body: PromptFields, block_size: int, is_eagle: bool) -> SharedHits:
        """Return the tokens of a prompt in the cache of its model, within the time limit."""
        return await self._by_model[body.model_name].look_up(
            comparable_prompt(body, block_size, is_eagle), self._limit_s
        )

    def list_status(self) -> list[SharedCacheStatus]:
        return [each.status() for each in self._by_model.values()]

    async def close(self) -> None:
        """Cancel the look-ups, and close the connections."""
        for each in self._by_model.values():
            await each.close()
        await self._http.close()


def comparable_prompt(body: PromptFields, block_size: int, is_eagle: bool) -> LookedUpPrompt | None:
    """Return the prompt as engines name it in a shared cache; None if that cannot be known.

    Hashes do not give the tokens; the names of images, adapters and salts are the engine's own.
    """
    images = body.mm_routing_info is not None or bool(body.block_mm_infos)
    if body.token_ids is None or images or body.lora_name or body.cache_salt:
        return None
    return LookedUpPrompt(body.token_ids[:TOKENS_MAX], block_size, is_eagle)
