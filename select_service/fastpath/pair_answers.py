"""Answers about pairs: a kernel chooses, books and renders; costs, hand-over and records follow.

The kernel is loaded on a thread at the first request for a pair, so that services without pairs do
not pay for it and the event loop does not wait.
"""

import threading
from collections.abc import Callable
from importlib import import_module

import msgspec

from select_service.core.pairs.pair_bookings import make_transfer
from select_service.core.pairs.pair_kernels import NO_SLOT
from select_service.core.pairs.pair_log import StoredDecision
from select_service.core.pairs.pair_placer import PairPlacement
from select_service.core.pairs.stored_pair import StoredPair
from select_service.core.selector import SelectorCore
from select_service.fastpath import serve_layout as layout
from select_service.fastpath.pair_scene_layout import NEEDS_RELEASE, NEEDS_ROOM
from select_service.fastpath.pair_scenes import PairScene
from select_service.fastpath.parsing import request_layout as request
from select_service.fastpath.parsing.request_layout import NONE
from select_service.fastpath.partition_cache import PartitionCache
from select_service.fastpath.reservation_calls import ReservationCalls
from select_service.fastpath.serve_memory import ServeMemory

_KERNELS = "select_service.fastpath.pair_serving_kernels"
_encode = msgspec.json.Encoder().encode


class _Costs(msgspec.Struct):
    """Costs of an answer, behind its `move_tokens`."""

    move_cost: float
    local_cost: float | None
    remote_cost: float | None


class PairKernel:
    """Compiled call of all handlers, once it is loaded."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.serve: Callable[..., int] | None = None
        """`pair_serving_kernels.serve_pair`; None before it is loaded."""

    def start_loading(self) -> None:
        """Load on a thread, unless that has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self.load, name="pair-kernel", daemon=True)
            self._thread.start()

    def load(self) -> None:
        """Load, or compile."""
        self.serve = import_module(_KERNELS).serve_pair


PAIR_KERNEL = PairKernel()


class PairAnswers:
    """Answers of a handler."""

    def __init__(
        self,
        selector: SelectorCore,
        memory: ServeMemory,
        partitions: PartitionCache,
        calls: ReservationCalls,
    ) -> None:
        self._pairs, self._decisions = selector.pairs, selector.decisions
        self._book, self._log = selector.pairs.book, selector.pairs.log
        self._memory, self._partitions, self._calls = memory, partitions, calls
        self._scenes, self._header = partitions.pair_scenes, memory.header
        self._numbers, self._out = memory.header.data, memory.out.data
        self._record = memory.selection.data.cast("B")

    def answer_request(self, data: bytes, draw: float) -> int:
        """Write the answer to the parsed request into OUT, and book the pair if requested: RENDER.

        DECLINED, with nothing changed, if that is left to the ordinary path.
        """
        if (serve := PAIR_KERNEL.serve) is None:
            PAIR_KERNEL.start_loading()
            return layout.DECLINED
        number = self._numbers[layout.AT_ROW]
        scene = self._scenes.get(number)
        if scene is None or scene.version != scene.table.version:
            scene = self._make_scene(number)
        if scene is None:
            return layout.DECLINED
        scene.placer.use_rule(None)
        row, name = serve(data, self._header, scene.header, draw, False), None
        while row < 0:
            if row == layout.NEEDS_ID:
                name = self._decisions.new_reservation_id()
                self._memory.set_new_id(name)
            elif not self._prepare(row, number):
                return layout.DECLINED
            row = serve(data, self._header, scene.header, draw, name is not None)
        if row and name is None:
            name = self._calls.name_field(data, request.RESERVATION_ID)
        self._finish(data, scene, name)
        return layout.RENDER

    def _prepare(self, outcome: int, number: int) -> bool:
        """Make what the kernel lacks; return whether it can be called again."""
        assert outcome != layout.LEDGER_BROKEN, "a leg with room could not be booked"
        cached, state = self._partitions.partition_at(number), self._numbers
        ledger = self._decisions.ledger
        try:
            if outcome == layout.TEXT_MISSING:
                cached.templates.render_template(state[layout.SLOT])
            elif outcome == NEEDS_ROOM:
                ledger.reserve_room(cached.partition.account.load, 2 * state[request.N_SEQUENCE])
            elif outcome == NEEDS_RELEASE:
                ledger.release_memory()
        except MemoryError:
            return False
        return outcome != layout.DECLINED

    def _make_scene(self, number: int) -> PairScene | None:
        """Return a scene of the present ranks of a row; None if pairs are not served there, as
        before the first booking and the first pair of the ordinary path.
        """
        if not (self._decisions.config.assume_kv_reuse and self._partitions.ensure_booking(number)):
            return None
        partition, links = self._partitions.partition_at(number).partition, self._pairs.links
        if links.find_traffic(partition) is None:
            return None
        scene = PairScene(partition, links.links_of(partition), self._pairs.decided)
        self._scenes[number] = scene
        return scene

    def _finish(self, data: bytes, scene: PairScene, name: str | None) -> None:
        """Complete the answer in OUT, and record its pair.

        name: id of the reservation; None without one
        """
        state, out, placer = self._numbers, self._out, scene.placer
        prefill, decode, _, local, _, _, remote, tokens, cost, *_ = placer.result.tolist()
        slots = None if prefill == NO_SLOT else (int(prefill), int(decode))
        # The encoder writes null for an infinite cost, of a path that no pair can take.
        tail = _encode(_Costs(cost, local, remote))
        if slots is None:
            tail = tail[1:]
        else:
            tail = tail[1:-1] + scene.encode_handoff(slots, self._decisions.rng)
        begin = state[layout.PAIR_END]
        state[layout.PAIR_END] = end = begin + len(tail)
        out[begin:end] = tail
        if name is None and not self._log.is_on:
            return
        has_id = state[request.SELECTION_ID] != NONE
        stored = StoredPair(
            scene.partition,
            self._pairs,
            name,
            self._calls.name_field(data, request.SELECTION_ID) if has_id else None,
            bytes(out[layout.BODY_BEGIN : end]),
            bytes(self._record[: state[layout.PAIR_RECORD]]),
        )
        if name is not None:
            if self._decisions.ledger.notifies_bookings:
                self._notify_booked(stored, placer.read_choice(), name)
            transfer = None if slots is None else make_transfer(placer, slots, tokens, cost)
            self._book.add_new_pair(name, stored, transfer)
        if self._log.is_on:
            self._append_decision(scene, stored)

    def _append_decision(self, scene: PairScene, stored: StoredPair) -> None:
        """Record a decision, without the pair itself, which would keep a removed partition
        alive.
        """
        now = self._numbers[layout.BEGAN_NS] / 1e9
        names = stored.reservation_id, stored.selection_id, stored.partition.key.tenant_id
        self._log.append(
            StoredDecision(
                now, scene.n_open, scene.policy_name, names, stored.answer, stored.record
            )
        )

    def _notify_booked(self, stored: StoredPair, choice: PairPlacement | None, name: str) -> None:
        """Notify the followers of bookings of a pair that the kernel has booked."""
        assert choice is not None
        now = self._numbers[layout.BEGAN_NS] / 1e9
        self._pairs.notify_booked(stored.restore_job(), choice, name, now)
