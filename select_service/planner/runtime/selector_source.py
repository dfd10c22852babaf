"""Client of every selector's observations of a model and tenant."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.net.http_client.http_error import HttpError
from select_service.planner.connectors.selector_client import SelectorRefusal, decode_refusal
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.runtime.selector_observation import (
    CombinedObservation,
    SelectorObservation,
    combine_observations,
)

log = logging.getLogger("select_service.planner")

WINDOW_S_MAX = 3600
_UNKNOWN_PARTITION = 404, "not_found"
"""Status and code of a selector that never had a worker of the model and tenant: no traffic there.
A 404 with another code, or none, is from a server without observations.
"""


class SelectorSource:
    """Selector source of a deployment. Belongs to one event loop."""

    def __init__(
        self,
        urls: Sequence[str],
        http: PlannerHttpClient,
        model_name: str,
        tenant_id: str,
        clock: Callable[[], float],
        *,
        key_file: str | None = None,
    ) -> None:
        """Create the source.

        clock:    monotonic seconds
        key_file: file with the key for selectors
        """
        self._key_file = key_file
        self._urls = urls
        self._http = http
        self._scope = {"model_name": model_name, "tenant_id": tenant_id}
        self._clock = clock
        self._gone_since: dict[str, float] = {}
        self.faults: dict[str, str] = {}
        """Map from URL to its error in the last reading."""
        self.unknown_model: str | None = None
        """Message of the last reading, if no answering selector has the model."""

    @property
    def is_absent(self) -> bool:
        """Whether all selectors answer and none has the model."""
        return self.unknown_model is not None and not self.faults

    async def read_observations(
        self, window_s: float, *, ttft_s: float, itl_s: float
    ) -> CombinedObservation | None:
        """Return the last `window_s` seconds over all selectors; None without an answer.

        Traffic is unknown if a selector did not answer. A selector that has refused connections for
        a whole window had no requests, and is left out.
        """
        # Kept to log the transition only.
        before, self.unknown_model = self.unknown_model, None
        window = max(1, min(WINDOW_S_MAX, round(window_s)))
        answers = await asyncio.gather(*(self._read_observation(url, window) for url in self._urls))
        heard = [each for each in answers if each is not None]
        if heard:
            self.unknown_model = None
        if self.unknown_model is not None and before is None:
            log.warning("no selector has the model", extra={"fields": dict(self._scope)})
        if not heard and self.faults:
            return None
        try:
            result = combine_observations(heard, window_s=window_s, ttft_s=ttft_s, itl_s=itl_s)
        except ValueError as error:  # answers of different versions
            self.faults[self._urls[0]] = (
                f"observations of different versions cannot be combined: {error}"
            )
            return None
        # A silent selector may have had requests, so totals of the others would be too low.
        if any(not self._has_refused_connections(url, window_s) for url in self.faults):
            certain = msgspec.structs.replace(result.traffic, duration_s=window_s).without_totals()
            return msgspec.structs.replace(result, traffic=certain)
        return result

    async def _read_observation(self, url: str, window_s: int) -> SelectorObservation | None:
        """Return the observation of a selector, or None with its error in `faults`."""
        query = self._scope | {"window_s": str(window_s)}
        try:
            path = f"{url.rstrip('/')}/planner/observation"
            text = await self._http.get(path, query, token_file=self._key_file)
            answer = msgspec.json.decode(text, type=SelectorObservation)
        except HttpError as error:
            refusal = decode_refusal(error.body)
            # A selector without the partition had no requests for the model: that is an answer, not
            # a fault.
            if (error.status, refusal.code) == _UNKNOWN_PARTITION:
                self._record_answer(url)
                self.unknown_model = refusal.error
                return None
            self._record_error(url, _error_line(error, refusal), is_gone=error.failure == "refused")
            return None
        except DECODE_ERRORS as error:
            fault = (
                f"the answer is not an observation ({error}): check that this is the URL of a "
                "selector"
            )
            self._record_error(url, fault, is_gone=False)
            return None
        self._record_answer(url)
        return answer

    def _record_answer(self, url: str) -> None:
        """Record an answer."""
        if self.faults.pop(url, None) is not None:
            log.info("selector answers again", extra={"fields": {"url": url}})
        self._gone_since.pop(url, None)

    def _record_error(self, url: str, fault: str, *, is_gone: bool) -> None:
        """Record an error."""
        if url not in self.faults:
            log.warning("selector not readable", extra={"fields": {"url": url, "error": fault}})
        self.faults[url] = fault
        if is_gone:
            self._gone_since.setdefault(url, self._clock())
        else:
            self._gone_since.pop(url, None)

    def _has_refused_connections(self, url: str, window_s: float) -> bool:
        """Return whether a selector has refused connections for a whole window."""
        since = self._gone_since.get(url)
        return since is not None and self._clock() - since >= window_s


def _error_line(error: HttpError, refusal: SelectorRefusal) -> str:
    """Return the error in one line, without pages of other servers."""
    if not error.status:
        return str(error)
    if refusal.error:
        return f"status {error.status}: {refusal.error}"
    return f"status {error.status} from a server that is not a selector: check the URL"
