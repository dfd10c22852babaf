"""Applies catalog changes to KV event listeners, recovered blocks and index slots.

An operation that changes workers (HTTP, for example) calls the core, which records the change, and
then waits here until the change is in force.  One task takes recorded changes in order and applies
them on a thread; changes recorded during a pass are applied together in the next pass.  The task
needs no waiting caller: a client that disconnects leaves nothing half done, and changes without a
waiting caller are found by `wake_if_changed`.

Recovered blocks that cannot be attached are dropped.  Any other failure would leave listeners and
catalog inconsistent, so the failure ends the task and with it the service; waiting callers receive
the exception.
"""

import asyncio

from indexer.dumps.recovered_blocks import Adoption, adopt_blocks
from indexer.sockets.ingest import Ingest
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.core.registry.fleet.catalog_changes import CatalogChanges
from select_service.core.registry.fleet.fleet import WorkerFleet

ADOPTION_CALLBACK = "adoption"
"""Callback name under which failures of attaching recovered blocks are counted."""


class CatalogFollower:
    """Task that keeps listeners and index slots in step with the catalog.

    Belongs to the thread of the event loop.
    """

    def __init__(self, fleet: WorkerFleet, ingest: Ingest, callbacks: GuardedCallbacks) -> None:
        self._fleet = fleet
        self._ingest = ingest
        self._callbacks = callbacks
        self._work = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Futures of waiting callers in order of arrival, at most one per request or background
        task.
        """
        self._is_adopting = False
        self._is_adoption_stopped = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Start the task, which ends only by `stop` or with the exception of a failed pass."""
        assert self._task is None
        self._task = asyncio.create_task(self._apply_changes())
        return self._task

    async def stop(self) -> None:
        """Cancel the task.  Work that already runs on its thread continues; no new work begins."""
        self.stop_adoptions()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def stop_adoptions(self) -> None:
        """Stop attaching recovered blocks at shutdown.

        Unfinished ranks stay marked as being filled.
        """
        self._is_adoption_stopped = True

    def wake_if_changed(self) -> None:
        """Wake the task if changes were recorded."""
        if self._fleet.has_changes:
            self._work.set()

    async def wait_until_applied(self) -> None:
        """Wait until all changes recorded so far are in force.

        Raises the exception that ended the task.
        """
        if self._failure is not None:
            raise self._failure
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._work.set()
        await done

    async def wait_until_adopted(self) -> None:
        """Wait until no rank waits for recovered blocks."""
        while self._is_adopting or self._fleet.has_adoptions:
            await self.wait_until_applied()

    async def _apply_changes(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                # A caller may wait without a recorded change; the pass then only confirms the
                # current state.
                while self._fleet.has_changes or self._waiting:
                    await self._run_pass()
        except Exception as error:
            self._failure = error
            # Waiting requests must fail now: nothing will apply their change any more.
            self._release_waiting(len(self._waiting), error)
            raise

    async def _run_pass(self) -> None:
        """Apply the recorded changes, or as many as a pass may take."""
        changes = self._fleet.take_changes()
        # Counted before the awaits below: callers that arrive during the pass wait for the next
        # pass.
        answered = 0 if self._fleet.has_changes else len(self._waiting)
        if changes.renewed or changes.adoptions:
            await self._fill_slots(changes)
        await asyncio.to_thread(self._update_listeners, changes)
        self._release_waiting(answered, None)

    def _release_waiting(self, count: int, error: Exception | None) -> None:
        """Release the first `count` waiting callers; cancelled futures are skipped."""
        answered, self._waiting = self._waiting[:count], self._waiting[count:]
        for done in answered:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    async def _fill_slots(self, changes: CatalogChanges) -> None:
        """Clear slots and attach recovered blocks.

        This comes before the listeners of these ranks start: a listener continues where the
        recovered blocks end.
        """
        self._is_adopting = bool(changes.adoptions)
        try:
            await asyncio.to_thread(self._clear_and_adopt, changes)
        except Exception:
            self._callbacks.record_failure(ADOPTION_CALLBACK)
            await asyncio.to_thread(_drop_adoptions, changes.adoptions)
        finally:
            self._is_adopting = False

    def _clear_and_adopt(self, changes: CatalogChanges) -> None:
        for writer in changes.renewed:
            writer.finish_clear()  # the slot rejects blocks until this call
        adopt_blocks(changes.adoptions, lambda: self._is_adoption_stopped)

    def _update_listeners(self, changes: CatalogChanges) -> None:
        # Listeners first: a writer may be closed only after its last listener is gone.
        self._ingest.reconcile(changes.sources)
        for writer in changes.retired:
            writer.close()


def _drop_adoptions(adoptions: list[Adoption]) -> None:
    """Drop unfinished adoptions: their ranks start with an empty index."""
    for _, _, writer in adoptions:
        if writer.is_filling:
            writer.clear()
            writer.is_filling = False
