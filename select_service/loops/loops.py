"""All loops of a service: begun with its server, told what they need, ended before it."""

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.core.selector import Selector
from select_service.fast.protocol import Lean
from select_service.http.head import Headers
from select_service.loops import loop_layout as layout
from select_service.loops.loop import Handed, InputLoop, Limits
from select_service.loops.publishing import Publishing
from select_service.loops.taking_over import TakingOver
from select_service.metrics.input_loops import LoopCounts
from select_service.metrics.service_metrics import Metrics


class Served:
    """One loop with what it is told."""

    def __init__(
        self,
        listener: socket.socket,
        selector: Selector,
        metrics: Metrics,
        number: int,
        limits: Limits,
    ) -> None:
        self.publishing = Publishing(selector, metrics, number)
        self.loop = InputLoop(listener, self.publishing.state, limits)
        metrics.before_observing.append(self.pass_on)

    def say(self, headers: Headers) -> None:
        """Every answer begins with these from now on."""
        with self.loop.mutex:
            if self.publishing.say(headers):
                self.loop.mended()

    def pass_on(self) -> None:
        with self.loop.mutex:
            self.publishing.pass_on()

    def counts(self) -> LoopCounts:
        counters = self.loop.counters.tolist()
        return LoopCounts(
            connections=int(self.loop.header[layout.N_CONNECTIONS]),
            accepted=counters[layout.ACCEPTED],
            handed_over=tuple(counters[: layout.N_WHY]),
            closed=counters[layout.CLOSED_IDLE] + counters[layout.CLOSED_UNREAD],
            questions=counters[layout.QUESTIONS],
            pauses=counters[layout.PAUSES],
            taken_back=counters[layout.TAKEN_BACK],
        )

    def taken(self) -> list[Handed]:
        """What the loop has handed over."""
        with self.loop.mutex:
            return self.loop.take()

    def give_back(self, fd: int, returns: int) -> bool:
        """See InputLoop."""
        with self.loop.mutex:
            return self.loop.give_back(fd, returns)

    def mend(self) -> None:
        """Answer the question of the loop, if it has one."""
        with self.loop.mutex:
            question = self.loop.question()
            if question is not None:
                try:
                    self.publishing.mend(question)
                finally:
                    self.loop.mended()


class Loops:
    """The `Front` of a server whose connections begin on loops."""

    def __init__(
        self,
        listeners: Iterable[socket.socket],
        lean: Lean,
        selector: Selector,
        metrics: Metrics,
        limits: Limits = Limits(),  # noqa: B008  it never changes
    ) -> None:
        """listeners: one for each loop;  lean: who meets what loops hand over"""
        self._lean = lean
        self._served = [
            Served(listener, selector, metrics, number, limits)
            for number, listener in enumerate(listeners, 1)
        ]
        self._has_failed = asyncio.Event()
        self._taking: TakingOver | None = None
        self._has_begun = self._has_ended = False

    def ask_hosts(self, hosts: Sequence[bytes]) -> None:
        """Before it begins: only requests for these hosts are answered by loops."""
        for served in self._served:
            served.publishing.ask_hosts(hosts)

    def __call__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        return self._lean(config, server_state, app_state, _loop)

    def say(self, headers: Headers) -> None:
        """Every answer begins with these from now on."""
        self._lean.say(headers)
        for served in self._served:
            served.say(headers)
        if self._taking is not None and not self._has_begun:
            self._has_begun = True
            self._begin(self._taking)

    async def begin(self, config: uvicorn.Config, state: ServerState) -> None:
        """Connections are accepted once it is known what answers begin with."""
        self._taking = TakingOver(self._lean, config, state)

    def _begin(self, taking: TakingOver) -> None:
        loop = asyncio.get_running_loop()
        for number, served in enumerate(self._served, 1):
            loop.add_reader(served.loop.told, _heard, served, taking)
            ended = partial(loop.call_soon_threadsafe, self._thread_ended, served)
            served.loop.start(number, ended)

    def _thread_ended(self, served: Served) -> None:
        if not served.loop.is_stopping:
            self._has_failed.set()

    def watched(self) -> asyncio.Task[None]:
        """A task that ends when a loop has ended by itself, with the reason."""
        return asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await self._has_failed.wait()
        errors = [served.loop.error for served in self._served if served.loop.error]
        raise RuntimeError(f"an input loop ended: {[os.strerror(error) for error in errors]}")

    def counts(self) -> list[LoopCounts]:
        """For /metrics."""
        return [served.counts() for served in self._served]

    async def leave(self) -> list[socket.socket]:
        """The loops end; the event loop accepts where they did."""
        listeners = [served.loop.listener.dup() for served in self._served]
        await self._lean.leave()
        await self._end(keeps_idle=True)
        return listeners

    async def end(self) -> None:
        """No more connections; those with something in hand are the event loop's."""
        if not self._has_ended:
            await self._end(keeps_idle=False)

    async def _end(self, keeps_idle: bool) -> None:
        self._has_ended = True
        loop = asyncio.get_running_loop()
        for served in self._served:
            served.loop.stop(keeps_idle)
        for served in self._served:
            if served.loop.thread is not None:
                await loop.run_in_executor(None, served.loop.thread.join)
                loop.remove_reader(served.loop.told)
                if self._taking is not None:
                    self._taking.take(served.taken(), served.give_back)
            served.loop.close()
        if self._taking is not None:
            await self._taking.finish()


def _heard(served: Served, taking: TakingOver) -> None:
    """The event loop's: a loop has told something."""
    try:
        os.eventfd_read(served.loop.told)
        taking.take(served.taken(), served.give_back)
        served.mend()
    except Exception:
        taking.failed()
