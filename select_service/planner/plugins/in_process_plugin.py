"""Plugin in this process: an object for each deployment, called on threads of its own."""

import asyncio
from collections.abc import Mapping
from threading import Thread

import msgspec

from select_service.planner.core.plugin_contracts import (
    InvalidAnswer,
    PluginAnswer,
    PluginContext,
)
from select_service.planner.plugins.plugin_port import (
    PluginBusy,
    PluginError,
    StageRequest,
    convert_answer,
)

THREADS_MAX = 16
"""Limit of running calls of a plugin; a call that hangs counts until its end."""


class InProcessPlugin:
    """Objects of a class. A thread cannot be stopped, so a hanging object is not called again."""

    def __init__(self, name: str, objects: Mapping[str, object]) -> None:
        """name: name of the plugin; objects: object of each deployment"""
        self._name = name
        self._objects = objects
        self._running: set[str] = set()
        """Deployments with a running call."""

    async def call_stage(self, request: StageRequest) -> PluginAnswer | None:
        """Call the object's method of the stage on a thread."""
        if request.deployment in self._running or len(self._running) >= THREADS_MAX:
            raise PluginBusy("an earlier call still runs")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[PluginAnswer | None] = loop.create_future()

        def end(answer: PluginAnswer | None, error: Exception | None) -> None:
            """Record the end of the call, on the event loop."""
            self._running.discard(request.deployment)
            if answered.done():  # too late
                return
            if error is None:
                answered.set_result(answer)
            else:
                answered.set_exception(error)

        def run() -> None:
            """Run the call, on the thread."""
            answer, error = self._call_object(request)
            try:
                loop.call_soon_threadsafe(end, answer, error)
            except RuntimeError:  # the planner has ended meanwhile
                return

        # A daemon, because a hanging plugin must not keep the process alive at its end.
        Thread(target=run, name=f"plugin {self._name}", daemon=True).start()
        # Not too late: `end` runs on this event loop.
        self._running.add(request.deployment)
        return await answered

    def _call_object(
        self, request: StageRequest
    ) -> tuple[PluginAnswer | None, PluginError | InvalidAnswer | None]:
        """Return the answer or the error of a call."""
        try:
            # A copy of its own, so that a plugin cannot change what the core calculates with.
            context = msgspec.json.decode(request.body, type=PluginContext)
            method = getattr(self._objects[request.deployment], request.stage.value)
            return convert_answer(request.stage, method(context)), None
        except InvalidAnswer as error:
            return None, error
        # SystemExit, too: it would end only the thread and leave the call without an answer.
        except BaseException as error:
            return None, PluginError(f"{type(error).__name__}: {_first_line(error)}")

    async def send_heartbeat(self) -> None:
        """Do nothing: an object in this process lives as long as the planner."""

    async def close(self) -> None:
        """Do nothing: the threads end with their calls."""


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, which may fail itself."""
    try:
        return str(error).partition("\n")[0][:200]
    except Exception:
        return "(no text)"
