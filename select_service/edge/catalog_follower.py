"""EDGE: what follows a change of workers: listeners, recovered blocks, index slots to be cleared.

Whoever changes workers (HTTP now) calls a verb of the core, which notes what it touched, and then
waits here until that is in force.  One task takes the notes in the order in which they were made
and carries them out on a thread; what is noted meanwhile is carried out together in the next pass.
Nobody's waiting is needed for that: a client that goes away leaves nothing half done, and changes
that nobody waits for are seen by `look`.

Recovered blocks that cannot be attached are given up.  Any other failure would leave listeners and
catalog apart, so it ends the task, and with it the service; who waits is told.
"""

import asyncio

from indexer.dumps.held_blocks import Adoption, adopt
from indexer.sockets.ingest import Ingest
from select_service.core.fleet.fleet import CatalogChanges, Fleet
from select_service.edge.supervised import Callbacks

ADOPTION = "adoption"
"""Failures of attaching recovered blocks are counted under this name."""


class CatalogFollower:
    """Belongs to the thread of the event loop."""

    def __init__(self, fleet: Fleet, ingest: Ingest, callbacks: Callbacks) -> None:
        self._fleet = fleet
        self._ingest = ingest
        self._callbacks = callbacks
        self._work = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """At most one of each request and background task, in the order in which they asked."""
        self._is_adopting = False
        self._adopts_no_more = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task ends only by `stop`, or with what a pass raised."""
        assert self._task is None
        self._task = asyncio.create_task(self._follow())
        return self._task

    async def stop(self) -> None:
        """What is under way goes on, on its thread; nothing else begins."""
        self.break_off_adoptions()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def break_off_adoptions(self) -> None:
        """The process ends: ranks without their recovered blocks stay marked as being filled."""
        self._adopts_no_more = True

    def look(self) -> None:
        """Begin with what was noted, if anything was."""
        if self._fleet.has_changes:
            self._work.set()

    async def followed(self) -> None:
        """Wait until all that was noted until now is in force.  Raises what ended the task."""
        if self._failure is not None:
            raise self._failure
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._work.set()
        await done

    async def adopted(self) -> None:
        """Wait until no rank is between waiting for recovered blocks and having them."""
        while self._is_adopting or self._fleet.has_adoptions:
            await self.followed()

    async def _follow(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._fleet.has_changes or self._waiting:
                    await self._pass()
        except Exception as error:
            self._failure = error
            self._answer(len(self._waiting), error)
            raise

    async def _pass(self) -> None:
        """Carry out what was noted, or as much of it as one turn may take."""
        changes = self._fleet.take_changes()
        answered = 0 if self._fleet.has_changes else len(self._waiting)
        if changes.renewed or changes.adoptions:
            await self._fill(changes)
        await asyncio.to_thread(self._listen, changes)
        self._answer(answered, None)

    def _answer(self, count: int, error: Exception | None) -> None:
        """The first ones who wait, without those that have gone."""
        answered, self._waiting = self._waiting[:count], self._waiting[count:]
        for done in answered:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    async def _fill(self, changes: CatalogChanges) -> None:
        """Before the listeners of these ranks begin: they go on where the recovered blocks end."""
        self._is_adopting = bool(changes.adoptions)
        try:
            await asyncio.to_thread(self._clear_and_adopt, changes)
        except Exception:
            self._callbacks.failed(ADOPTION)
            await asyncio.to_thread(_give_up, changes.adoptions)
        finally:
            self._is_adopting = False

    def _clear_and_adopt(self, changes: CatalogChanges) -> None:
        for writer in changes.renewed:
            writer.finish_clear()  # until then the slot takes nothing in
        adopt(changes.adoptions, lambda: self._adopts_no_more)

    def _listen(self, changes: CatalogChanges) -> None:
        self._ingest.follow(changes.sources)
        for writer in changes.retired:
            writer.close()


def _give_up(adoptions: list[Adoption]) -> None:
    """Those that are not done: their ranks begin with nothing."""
    for _, _, writer in adoptions:
        if writer.filling:
            writer.clear()
            writer.filling = False
