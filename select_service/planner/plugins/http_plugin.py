"""Plugin behind a URL: a POST of the context in each call, a GET as heartbeat."""

from select_service.net.http_client.http_error import HttpError
from select_service.planner.config import PluginConfig
from select_service.planner.core.plugin_contracts import InvalidAnswer, PluginAnswer
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.plugins.plugin_port import (
    ANSWER_BYTES_MAX,
    PluginError,
    StageRequest,
    decode_answer,
)


class HttpPlugin:
    """Plugin over HTTP; the client belongs to the caller."""

    def __init__(self, config: PluginConfig, http: PlannerHttpClient) -> None:
        assert config.url is not None
        self._url, self._token_file = config.url, config.token_file
        self._timeout_s = config.timeout_s
        self._http = http

    async def call_stage(self, request: StageRequest) -> PluginAnswer | None:
        """Send the context and return the answer."""
        try:
            text = await self._http.post(
                self._url,
                request.body,
                token_file=self._token_file,
                timeout_s=self._timeout_s,
                bytes_max=ANSWER_BYTES_MAX,
            )
        except HttpError as error:
            raise _plugin_error(error) from None
        return decode_answer(request.stage, text)

    async def send_heartbeat(self) -> None:
        """Send a GET, which must be answered with status 200."""
        try:
            await self._http.get(self._url, token_file=self._token_file, timeout_s=self._timeout_s)
        except HttpError as error:
            raise PluginError(str(error)) from None

    async def close(self) -> None:
        """Do nothing: connections belong to the client."""


def _plugin_error(error: HttpError) -> Exception:
    """Return the error of a call."""
    if error.failure == "timeout":
        return TimeoutError(str(error))
    if error.failure == "too_large":
        return InvalidAnswer(str(error))
    return PluginError(str(error))
