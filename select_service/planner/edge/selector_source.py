"""EDGE: asks every selector what it observed of a model and tenant."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from select_service.planner.edge.observation import Observation, Observed, observed
from select_service.planner.outbound import Outbound, Unreachable
from select_service.unreadable_json import UNREADABLE

log = logging.getLogger(__name__)

WINDOW_S_MAX = 3600
_NO_PARTITION = 404, "not_found"
"""Status and code of a selector that never had a worker of this model and tenant: nothing happened
there. A 404 of another code, or of none, is of something that observes nothing."""


class _Refusal(msgspec.Struct):
    error: str = ""
    code: str = ""


class SelectorSource:
    """Of one deployment. Belongs to one event loop."""

    def __init__(
        self,
        urls: Sequence[str],
        http: Outbound,
        model_name: str,
        tenant_id: str,
        clock: Callable[[], float],
        *,
        key_file: str | None = None,
    ) -> None:
        """clock: seconds that never go back;  key_file: holds the key that selectors ask for"""
        self._key_file = key_file
        self._urls = urls
        self._http = http
        self._of = {"model_name": model_name, "tenant_id": tenant_id}
        self._clock = clock
        self._gone_since: dict[str, float] = {}
        self.faults: dict[str, str] = {}
        """URL -> why it said nothing in the last reading."""
        self.unknown: str | None = None
        """What was said in the last reading, where all that answered know nothing of the model."""

    @property
    def is_absent(self) -> bool:
        """Whether all selectors answer, and none of them knows the model."""
        return self.unknown is not None and not self.faults

    async def observe(self, window_s: float, *, ttft_s: float, itl_s: float) -> Observed | None:
        """The last `window_s` seconds of all selectors together; None: nobody answered.

        Traffic is unknown when one of them said nothing. One that has refused connections for a
        whole window had no requests in it, and counts as none.
        """
        before, self.unknown = self.unknown, None
        window = max(1, min(WINDOW_S_MAX, round(window_s)))
        answers = await asyncio.gather(*(self._ask(url, window) for url in self._urls))
        heard = [each for each in answers if each is not None]
        if heard:
            self.unknown = None
        if self.unknown is not None and before is None:
            log.warning("no selector knows the model", extra={"fields": dict(self._of)})
        if not heard and self.faults:
            return None
        try:
            result = observed(heard, window_s=window_s, ttft_s=ttft_s, itl_s=itl_s)
        except ValueError as error:  # of different versions
            self.faults[self._urls[0]] = f"the observations cannot be added: {error}"
            return None
        if any(not self._is_gone(url, window_s) for url in self.faults):
            certain = msgspec.structs.replace(result.traffic, duration_s=window_s).without_totals()
            return msgspec.structs.replace(result, traffic=certain)
        return result

    async def _ask(self, url: str, window_s: int) -> Observation | None:
        query = self._of | {"window_s": str(window_s)}
        try:
            path = f"{url.rstrip('/')}/planner/observation"
            text = await self._http.get(path, query, token_file=self._key_file)
            answer = msgspec.json.decode(text, type=Observation)
        except Unreachable as error:
            refusal = _refusal(error.body)
            if (error.status, refusal.code) == _NO_PARTITION:
                self._heard_from(url)
                self.unknown = refusal.error
                return None
            self._missed(url, _fault(error, refusal), is_gone=error.gone)
            return None
        except UNREADABLE as error:
            fault = f"the answer is no observation ({error}): is this the URL of a selector?"
            self._missed(url, fault, is_gone=False)
            return None
        self._heard_from(url)
        return answer

    def _heard_from(self, url: str) -> None:
        if self.faults.pop(url, None) is not None:
            log.info("a selector is heard again", extra={"fields": {"url": url}})
        self._gone_since.pop(url, None)

    def _missed(self, url: str, fault: str, *, is_gone: bool) -> None:
        if url not in self.faults:
            log.warning("a selector is not heard", extra={"fields": {"url": url, "error": fault}})
        self.faults[url] = fault
        if is_gone:
            self._gone_since.setdefault(url, self._clock())
        else:
            self._gone_since.pop(url, None)

    def _is_gone(self, url: str, window_s: float) -> bool:
        since = self._gone_since.get(url)
        return since is not None and self._clock() - since >= window_s


def _fault(error: Unreachable, refusal: _Refusal) -> str:
    """Return one line: pages of other servers are not shown."""
    if error.status is None:
        return str(error)
    if refusal.error:
        return f"status {error.status}: {refusal.error}"
    return f"status {error.status} in words that are no selector's: is this the URL of a selector?"


def _refusal(body: bytes) -> _Refusal:
    try:
        return msgspec.json.decode(body, type=_Refusal)
    except UNREADABLE:
        return _Refusal()
