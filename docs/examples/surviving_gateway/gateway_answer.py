"""One answer for a client, computed by as many engines as needed.

An answer is at one rank at a time. Tokens received so far are kept as ids; the next rank gets the
prompt and these ids. Output that was not passed on is computed again, so no token is lost or
repeated. The answer continues elsewhere when

* the service moved the reservation, because its rank is drained or sick;
* the stream breaks or stalls for `stall_s`. The failure is reported, and with several reports the
  service moves all reservations of the rank. After `move_s` without a move the reservation is freed
  and another worker is booked.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp
from gateway_engine import EngineFailed, EngineStream
from gateway_pair import PrefillLeg
from gateway_selector import Booking, NoAnswer, Rank, Selector, Unreachable, Wanted

FAILURES_MAX = 5
"""Engine failures in a row without a token."""
RESUME_S_MAX = 60.0
"""Longest search for room, in seconds, while the client has a part of its answer."""
CALLS_MAX = 8
"""Unanswered calls to the service; further output blocks are reported later."""
HELD_TOKENS_MAX = 8
"""Tokens without text that are held back; more of them are no incomplete character."""
FREE_FORM = "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar"
"""Request fields with engine state that a prompt cannot carry to another engine."""

COMMON = "id", "object", "created", "model"

T = TypeVar("T")


class Patience(NamedTuple):
    """Time limits in seconds.

    first_token_s: from the request to the first token, including the engine's queue
    stall_s:       between two tokens
    move_s:        wait of a broken answer for a move by the service
    """

    first_token_s: float
    stall_s: float
    move_s: float


class Moved(Exception):
    """Raised when the reservation has moved to another rank."""


class Answer:
    """Answer in progress. Call `next` until None or NoAnswer, then always `end`."""

    def __init__(
        self,
        request: Mapping[str, Any],
        selector: Selector,
        engines: aiohttp.ClientSession,
        patience: Patience,
        live: MutableMapping[str, "Answer"],
    ) -> None:
        """request: checked request
        live: running answers by reservation id, kept up to date by this answer
        """
        self._request, self._selector, self._engines = request, selector, engines
        self._patience, self._live = patience, live
        given = request["prompt"]
        self._prompt: list[int] | None = None if isinstance(given, str) else given
        self._tokens: list[int] = []
        self._head: dict[str, Any] = {}
        """Fields common to all chunks; empty before the first."""
        self._keeps_no_state = not any(request.get(name) for name in FREE_FORM)
        self._held: dict[str, Any] | None = None
        """Received output that is not passed on yet."""
        self._has_ids = True
        self._has_reason = self.is_over = False
        self._id = ""
        """Id of the reservation."""
        self._booking: Booking | None = None
        self._stream: EngineStream | None = None
        self._prefilling: asyncio.Future[dict[str, Any]] | None = None
        """Prefill by another engine at the same time."""
        self._failures = 0
        self._failed_on: set[int] = set()
        self._target: Rank | None = None
        """Rank of the reservation while the answer has not followed it."""
        self._has_target = asyncio.Event()
        self._moved_at: float | None = None
        """Time of the move that is still to be confirmed."""
        self._wait: asyncio.Timeout | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()
        self._tokens_told = 0

    # Called by the client's side

    async def next(self) -> dict[str, Any] | None:
        """Return the next chunk as if from one engine, or None after the last.

        Raises NoAnswer if no engine can continue.
        """
        while not self.is_over:
            try:
                if self._booking is None:
                    await self._book()
                elif self._target is not None:
                    self._follow(self._target, self._booking)
                elif self._stream is None and len(self._tokens) >= self._request["max_tokens"]:
                    return self._closing()
                elif self._stream is None:
                    await self._open(self._booking)
                else:
                    return await self._read(self._stream)
            except Moved:
                continue
            except EngineFailed as failure:
                await self._survive(failure)
        return None

    def usage(self) -> dict[str, int]:
        prompt, output = len(self._prompt or ()), len(self._tokens)
        total = prompt + output
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total}

    async def end(self) -> None:
        """Free the reservation: the answer is complete, failed, or its client has gone."""
        self._leave()
        self._return_piece("?outcome=ok" if self.is_over else "")
        await asyncio.gather(*self._calls)

    # Called for events of the service

    def moved(self, reservation_id: str, to: Rank, method: str = "reprefill") -> None:
        """Note the new rank of a reservation; events may repeat and arrive in any order."""
        here = None if self._booking is None else self._booking.rank
        if reservation_id != self._id or to in (here, self._target) or not self._can_go_on():
            return
        self._target, self._moved_at = to, time.monotonic()
        self._has_target.set()
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0.0)  # interrupts any wait
        if (
            method == "transfer"
        ):  # this gateway carries no caches: the target computes the prompt again
            self._tell("POST", "/migrated", {"ok": False})

    def ask_where(self) -> None:
        """Query the current rank after missed events."""
        self._tell("POST", "/renew")

    # From rank to rank

    async def _book(self) -> None:
        """Book a rank; wait longer for a client that has a part of its answer. Raises NoAnswer."""
        until = time.monotonic() + (RESUME_S_MAX if self._head else 0.0)
        while self._booking is None:
            self._id = uuid.uuid4().hex
            self._live[self._id] = self
            try:
                wanted = self._wanted()
                self._booking = await self._selector.reserve(self._id, wanted, self._failed_on)
            except NoAnswer as refusal:
                if isinstance(refusal, Unreachable):
                    self._return_piece()
                else:
                    self._forget()
                pause_s = float(refusal.retry_after or 1) + random.random()
                if refusal.status not in (429, 503) or time.monotonic() + pause_s > until:
                    raise
                await asyncio.sleep(pause_s)

    def _wanted(self) -> Wanted:
        model, given = self._request["model"], self._request["prompt"]
        # A moved answer would compute its prompt where it decodes: a pair is replaced instead.
        may_move = self._keeps_no_state and self._has_ids and not self._selector.has_pairs
        if self._prompt is None:  # estimate for a text: four characters per token
            return Wanted(model, None, len(given) // 4 + 1, may_move)
        ids = self._prompt + self._tokens
        return Wanted(model, ids, len(ids), may_move)

    def _follow(self, target: Rank, before: Booking) -> None:
        self._leave()
        # One rank: a target computes the prompt itself.
        self._booking = Booking(target, before.block_size, {})
        self._target = None
        self._has_target.clear()

    async def _survive(self, failure: EngineFailed) -> None:
        """Follow the move of the service, or book another worker. Raises NoAnswer."""
        assert self._booking is not None
        self._leave()
        self._failures += 1
        if self._failures > FAILURES_MAX or not self._can_go_on():
            raise NoAnswer.because(502 if failure.is_fault else 503, str(failure), "1")
        rank = self._booking.rank
        if failure.is_fault and self._target is None:
            report = {"dp_rank": rank.dp_rank, "outcome": "failure", "reservation_id": self._id}
            await self._selector.tell("POST", f"/workers/{rank.worker_id}/outcome", report)
            if not self._selector.has_pairs:  # the service moves no pairs
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_target.wait(), self._patience.move_s)
        if self._target is None:
            self._failed_on.add(rank.worker_id)
            self._return_piece()

    def _can_go_on(self) -> bool:
        """Whether another engine can compute the rest."""
        is_known = self._prompt is not None and self._has_ids and self._keeps_no_state
        return not self._has_reason and (is_known or not self._head)

    async def _move_prefill(self, rank: Rank, failure: EngineFailed) -> None:
        """Replace the prefill leg, or book another pair. Raises NoAnswer."""
        if failure.is_fault:
            report = {"dp_rank": rank.dp_rank, "outcome": "failure"}
            await self._selector.tell("POST", f"/workers/{rank.worker_id}/outcome", report)
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise NoAnswer.because(502 if failure.is_fault else 503, str(failure), "1")
        moved = await self._selector.move_prefill(self._id)
        if moved is None:
            self._return_piece()
        else:
            self._booking = moved

    def _leave(self) -> None:
        if self._prefilling is not None:
            self._prefilling.cancel()
            self._prefilling = None
        if self._stream is not None:
            self._stream.close()
            self._stream, self._held = None, None

    def _return_piece(self, outcome: str = "") -> None:
        if self._id:
            self._tell("DELETE", outcome)
            self._forget()

    def _forget(self) -> None:
        """Drop the reservation."""
        self._live.pop(self._id, None)
        self._id, self._booking, self._target, self._moved_at = "", None, None, None
        self._has_target.clear()
        self._tokens_told = len(self._tokens)  # the output so far becomes a part of the next prompt

    # At one rank

    async def _open(self, booking: Booking) -> None:
        """Open the stream of the booked rank. Raises Moved, EngineFailed, NoAnswer."""
        body = {**self._request, "stream": True, "return_token_ids": True}
        if self._tokens:
            assert self._prompt is not None
            done = len(self._tokens)
            body["prompt"] = self._prompt + self._tokens
            body["max_tokens"] -= done
            if body.get("min_tokens"):
                body["min_tokens"] = max(0, body["min_tokens"] - done)
        if (leg := PrefillLeg.of(booking.chosen)) is not None:
            body = await self._hand_over(leg, body)
        opening = EngineStream.open(self._engines, booking.rank, body)
        self._stream = await self._within(self._patience.first_token_s, opening)

    async def _hand_over(self, leg: PrefillLeg, body: Mapping[str, Any]) -> dict[str, Any]:
        """Let another engine compute the prompt and return the body for the booked one.

        Raises Moved, EngineFailed, NoAnswer.
        """
        computing = leg.compute(self._engines, body)
        if not leg.is_sequential:
            # The booked engine waits for the blocks, and fails if they do not come.
            self._prefilling = asyncio.ensure_future(computing)
            self._prefilling.add_done_callback(_retrieve)
            return leg.decode_body(body, None)
        try:
            reply = await self._within(self._patience.first_token_s, computing)
            made = leg.decode_body(body, reply)
        except EngineFailed as failure:
            await self._move_prefill(leg.rank, failure)
            raise Moved from failure
        self._tell("POST", "/prefill_complete")
        return made

    async def _read(self, stream: EngineStream) -> dict[str, Any] | None:
        """Return the next chunk of the engine. Raises Moved, EngineFailed."""
        while (chunk := await self._received(stream)) is not None:
            choices = chunk["choices"]
            chunk["choices"] = [whole for each in choices if (whole := self._legible(each))]
            if chunk["choices"] or not choices:
                return self._current_faults(chunk)
        self.is_over = True
        return None

    async def _received(self, stream: EngineStream) -> dict[str, Any] | None:
        """Return the next chunk, or None if the answer is complete."""
        seconds = self._patience.stall_s if stream.has_begun else self._patience.first_token_s
        try:
            chunk = await self._within(seconds, stream.next())
            if chunk is None and not self._has_reason:
                raise EngineFailed("the stream ended without a reason")
        except EngineFailed:
            if not self._has_reason:
                raise
            return None
        if chunk is not None and not stream.has_begun:
            stream.has_begun = True
            self._began()
        return chunk

    def _legible(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return the chunk joined with held output, or None while its text is incomplete.

        A token without text is a part of a character. An engine whose prompt ends with it would not
        write the rest, so held tokens are computed again after a move.
        """
        if self._held is not None:
            add(self._held, choice)
            choice = self._held
        is_short = len(choice.get("token_ids") or ()) < HELD_TOKENS_MAX
        is_held = is_short and not choice["text"] and choice.get("finish_reason") is None
        self._held = choice if is_held else None
        return None if is_held else choice

    def _current_faults(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Count the chunk and return it as the client gets it."""
        for choice in chunk["choices"]:
            self._note(choice)
        if chunk.get("usage"):
            chunk["usage"] = self.usage()
        if not self._head:
            self._head = {name: chunk[name] for name in COMMON if name in chunk}
        return chunk | self._head

    def _note(self, choice: dict[str, Any]) -> None:
        prompt, new = choice.pop("prompt_token_ids", None), choice.pop("token_ids", None) or []
        self._prompt = self._prompt or prompt
        self._has_ids &= bool(new) or not choice["text"]
        if self._request.get("return_token_ids"):
            choice["token_ids"] = new
            if not self._head:
                choice["prompt_token_ids"] = self._prompt
        self._tokens += new
        if new:
            self._failures = 0
        self._has_reason = choice.get("finish_reason") is not None
        self._tell_blocks()

    def _closing(self) -> dict[str, Any]:
        """Return the last chunk for an engine that failed after its last token."""
        self._has_reason = self.is_over = True
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
        return {"choices": [choice | {"token_ids": []}], **self._head}

    async def _within(self, seconds: float, work: Awaitable[T]) -> T:
        """Await within a time limit. Raises EngineFailed at its end, Moved on a move."""
        try:
            async with asyncio.timeout(seconds) as self._wait:
                return await work
        except TimeoutError:
            if self._target is not None:
                raise Moved from None
            raise EngineFailed(f"nothing came for {seconds} s") from None
        finally:
            self._wait = None

    # Calls about the reservation

    def _began(self) -> None:
        """Report the first token."""
        if self._moved_at is None:
            verb = "/first_token" if self._selector.has_pairs else "/prefill_complete"
            self._tell("POST", verb)
            return
        took_ms = 1000.0 * (time.monotonic() - self._moved_at)
        self._tell("POST", "/migrated", {"ok": True, "took_ms": took_ms})
        self._moved_at = None

    def _tell_blocks(self) -> None:
        assert self._booking is not None
        size = self._booking.block_size
        while len(self._tokens) - self._tokens_told >= size and len(self._calls) < CALLS_MAX:
            self._tokens_told += size
            self._tell("POST", "/output_block")

    def _tell(self, method: str, verb: str, body: Mapping[str, Any] | None = None) -> None:
        """Queue a call; calls keep their order and are not awaited."""
        if self._id:
            call = asyncio.create_task(self._told(method, self._id, verb, body))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _told(
        self, method: str, reservation_id: str, verb: str, body: Mapping[str, Any] | None
    ) -> None:
        async with self._order:
            path = f"/reservations/{reservation_id}{verb}"
            answer = await self._selector.tell(method, path, body)
        if "migrated_to" in answer:
            self.moved(reservation_id, Rank.of(answer["migrated_to"]))


def _retrieve(ended: "asyncio.Future[dict[str, Any]]") -> None:
    """Take the result of a prefill; its failure shows at the other engine."""
    if not ended.cancelled():
        ended.exception()


def add(whole: dict[str, Any], choice: Mapping[str, Any]) -> None:
    """Add a chunk to a whole answer: texts and lists grow, other fields take the last value."""
    for name, value in choice.items():
        before = whole.get(name)
        if before is None or not (name == "text" or isinstance(value, list | dict | None)):
            whole[name] = value
        elif isinstance(value, dict):  # log-probabilities
            add(before, value)
        elif value is not None:
            whole[name] = before + value
