"""Tests of the follower of worker changes: order, batches, clients that leave, failures."""

import asyncio
import threading

import numpy as np
import pytest

from indexer.dumps import recovered_blocks
from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.adapters.catalog_follower import ADOPTION_CALLBACK, CatalogFollower
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.core.identity import PartitionKey, Rank
from tests.builders import a_patch, a_reservation, a_selector, a_worker
from tests.builders.dumped_partition import a_dump
from tests.builders.polling import PATIENCE_S, eventually_on_loop

KEY = PartitionKey("m", "default")


class Listeners:
    """Fake of the sockets that records calls and waits on demand."""

    def __init__(self):
        self.told = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.error = None
        self.under_way = 0

    def reconcile(self, changed):
        self.under_way += 1
        assert self.under_way == 1, "two passes at once"
        ends = {worker_id: [s.endpoint for s in sources] for worker_id, sources in changed.items()}
        self.told.append(ends)
        assert self.go_on.wait(PATIENCE_S)
        self.under_way -= 1
        if self.error is not None:
            raise self.error


class Scene:
    def __init__(self):
        self.selector = a_selector(use_kv_events=True)
        self.listeners = Listeners()
        self.callbacks = GuardedCallbacks()
        self.follower = CatalogFollower(self.selector.fleet, self.listeners, self.callbacks)
        self.task = None

    async def __aenter__(self):
        self.task = self.follower.start()
        return self

    async def __aexit__(self, *_):
        self.listeners.go_on.set()
        await self.follower.stop()
        self.selector.check_invariants()

    def register(self, worker_id, **fields):
        fields = {"kv_events_endpoint": f"tcp://w{worker_id}:1"} | fields
        self.selector.register_worker(a_worker(worker_id, **fields))

    def registering(self, worker_id, **fields):
        """Register a worker as a handler does; return the wait for the change."""
        self.register(worker_id, **fields)
        return asyncio.ensure_future(self.follower.wait_until_applied())

    async def held_up(self):
        """Start a pass for worker 100 that ends after `go_on`; return the wait for it."""
        self.listeners.go_on.clear()
        first = self.registering(100)
        await eventually_on_loop(lambda: self.listeners.told)
        return first

    def writer(self, worker_id):
        return self.selector.fleet.partitions[KEY].table.writer_of(Rank(worker_id, 0))


async def test_an_answer_comes_when_the_change_is_in_force_and_not_before():
    async with Scene() as scene:
        first = await scene.held_up()
        assert scene.listeners.told == [{100: ["tcp://w100:1"]}]
        assert not first.done()
        scene.listeners.go_on.set()
        await first


async def test_changes_that_wait_are_followed_together_in_the_order_they_were_made():
    async with Scene() as scene:
        first = await scene.held_up()
        waiting = [scene.registering(worker_id) for worker_id in (3, 1, 2)]
        scene.selector.delete_worker(1, 0.0)
        waiting.append(asyncio.ensure_future(scene.follower.wait_until_applied()))
        scene.selector.patch_worker(3, a_patch(kv_events_endpoint="tcp://moved:1"))
        waiting.append(asyncio.ensure_future(scene.follower.wait_until_applied()))
        scene.listeners.go_on.set()
        await asyncio.gather(first, *waiting)
        assert len(scene.listeners.told) == 2
        together = scene.listeners.told[1]
        assert list(together.items()) == [(3, ["tcp://moved:1"]), (1, []), (2, ["tcp://w2:1"])]


async def test_a_change_during_a_pass_is_answered_by_the_next_pass():
    async with Scene() as scene:
        first = await scene.held_up()
        second = scene.registering(1)
        await asyncio.sleep(0)
        scene.listeners.go_on.set()
        await first
        assert not second.done()
        scene.listeners.go_on.clear()
        await eventually_on_loop(lambda: len(scene.listeners.told) == 2)
        scene.listeners.go_on.set()
        await second


async def test_a_client_that_left_is_forgotten_and_the_others_are_answered():
    async with Scene() as scene:
        first = await scene.held_up()
        gone, stays = scene.registering(1), scene.registering(2)
        await asyncio.sleep(0)
        for each in (first, gone):
            each.cancel()
        scene.listeners.go_on.set()
        await stays
        assert gone.cancelled()
        assert [set(told) for told in scene.listeners.told] == [{100}, {1, 2}]


async def test_an_old_listener_is_closed_before_the_slot_of_its_rank_is_cleared():
    async with Scene() as scene:
        await scene.registering(1)
        await scene.registering(2)
        writer, index = scene.writer(1), scene.selector.fleet.partitions[KEY].index
        hashes = compute_block_hashes(np.arange(8, dtype=np.uint32), 4)
        writer.store(Tier.GPU, None, hashes, hashes)
        scene.listeners.go_on.clear()
        scene.selector.delete_worker(1, 0.0)
        deleted = asyncio.ensure_future(scene.follower.wait_until_applied())
        await eventually_on_loop(lambda: {1: []} in scene.listeners.told)
        assert writer.is_open
        scene.listeners.go_on.set()
        await deleted
        assert not writer.is_open
        assert index.stats().blocks == 0


async def test_a_change_without_a_waiter_is_found_by_a_look():
    """Check a slot that is emptied only after its rank has left."""

    async with Scene() as scene:
        for worker_id in (1, 2):
            await scene.registering(worker_id)
        scene.selector.reserve(a_reservation("r", 1), 0.0)
        writer = scene.writer(1)
        scene.selector.delete_worker(1, 0.0)
        await scene.follower.wait_until_applied()
        assert writer.is_open
        scene.selector.run_pending(0.0)
        scene.follower.wake_if_changed()
        await eventually_on_loop(lambda: not writer.is_open)
        assert not scene.selector.fleet.has_changes


async def test_more_than_a_turn_may_take_is_followed_in_parts_and_answered_at_the_end(monkeypatch):
    async with Scene() as scene:
        fleet, take = scene.selector.fleet, scene.selector.fleet.take_changes
        monkeypatch.setattr(fleet, "take_changes", lambda: take(ranks_max=4))
        for worker_id in range(5):
            scene.register(worker_id)
        await scene.follower.wait_until_applied()
        assert [set(told) for told in scene.listeners.told] == [{0, 1}, {2, 3}, {4}]


async def test_a_failure_reaches_all_waiters_and_ends_the_task():
    async with Scene() as scene:
        first = await scene.held_up()
        second = scene.registering(1)
        await asyncio.sleep(0)
        scene.listeners.error = OSError("no more sockets")
        scene.listeners.go_on.set()
        for waiting in (first, second, scene.registering(2)):
            with pytest.raises(OSError, match="no more sockets"):
                await waiting
        await asyncio.wait([scene.task])
        assert scene.task.exception() is scene.listeners.error


def recovering(scene, worker_id):
    scene.selector.fleet.recovered_blocks.store_partitions(
        [a_dump(worker_id, name="m:default")], 0.0
    )
    return scene.registering(worker_id)


async def test_a_rank_has_its_recovered_blocks_before_it_is_listened_to():
    async with Scene() as scene:
        scene.listeners.go_on.clear()
        done = recovering(scene, 1)
        await eventually_on_loop(lambda: scene.listeners.told)
        writer = scene.writer(1)
        assert writer.position is not None
        assert not writer.is_filling
        scene.listeners.go_on.set()
        await done


async def test_recovered_blocks_that_cannot_be_attached_are_given_up_and_counted(monkeypatch):
    def fail(*_):
        raise MemoryError

    async with Scene() as scene:
        monkeypatch.setattr(recovered_blocks, "_attach_rank", fail)
        await recovering(scene, 1)
        assert not scene.writer(1).is_filling
        assert scene.listeners.told == [{1: ["tcp://w1:1"]}]
        assert scene.callbacks.failures == {ADOPTION_CALLBACK: 1}
        await scene.registering(2)


async def test_waiting_for_adoptions_ignores_other_changes(monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    attach = recovered_blocks._attach_rank

    def slowly(*given):
        began.set()
        assert go_on.wait(PATIENCE_S)
        return attach(*given)

    async with Scene() as scene:
        first = await scene.held_up()
        await scene.follower.wait_until_adopted()  # other changes need no wait
        monkeypatch.setattr(recovered_blocks, "_attach_rank", slowly)
        recovered = recovering(scene, 1)
        adopted = asyncio.ensure_future(scene.follower.wait_until_adopted())
        scene.listeners.go_on.set()
        await first
        await eventually_on_loop(began.is_set)
        assert not adopted.done()
        go_on.set()
        await asyncio.gather(adopted, recovered)


async def test_the_end_of_the_process_breaks_an_adoption_off():
    async with Scene() as scene:
        scene.follower.stop_adoptions()
        await recovering(scene, 1)
        assert scene.writer(1).is_filling
