"""Answer for a client, computed by as many engines as needed.

An answer uses a single rank at a time. The answer stores received tokens as ids; the next rank
receives the prompt and these ids. The next rank computes withheld output again, so no token is lost
or repeated. The answer continues elsewhere when

* the service moved the reservation, because the rank is drained or sick;
* the stream breaks or stalls for `stall_s`. The failure is reported, and with several reports the
  service moves all reservations of the rank. After `move_s` without a move the answer frees the
  reservation and reserves another worker.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp
from gateway_engine import EngineError, EngineStream
from gateway_pair import PrefillLeg
from gateway_selector import GatewayError, LostCall, Rank, RankRequest, Reservation, Selector

FAILURES_MAX = 5
"""Engine failures in a row without a token."""
RESUME_S_MAX = 60.0
"""Longest search for another rank of a begun answer, in seconds."""
REPORTS_MAX = 8
"""Pending reports to the service; further output blocks are reported later."""
WITHHELD_TOKENS_MAX = 8
"""Withheld tokens without text; a longer run is not an incomplete character."""
GRAMMARS = "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar"
"""Request fields with engine state that a prompt cannot carry to another engine."""
COMMON_FIELDS = "id", "object", "created", "model"

T = TypeVar("T")


class TimeLimits(NamedTuple):
    """Time limits in seconds.

    first_token_s: from the request to the first token, including the engine's queue
    stall_s:       between two tokens
    move_s:        wait of a broken answer for a move by the service
    """

    first_token_s: float
    stall_s: float
    move_s: float


class RankChange(Exception):
    """Interruption of a wait: the reservation has moved to another rank."""


class Answer:
    """Answer in progress. Call `next_chunk` until None or GatewayError, then always `end`."""

    def __init__(
        self,
        request: Mapping[str, Any],
        selector: Selector,
        engines: aiohttp.ClientSession,
        limits: TimeLimits,
        live_answers: MutableMapping[str, "Answer"],
    ) -> None:
        """request: validated request
        live_answers: running answers by reservation id, which this answer updates
        """
        self._request, self._selector, self._engines = request, selector, engines
        self._limits, self._live_answers = limits, live_answers
        prompt = request["prompt"]
        self._prompt: list[int] | None = None if isinstance(prompt, str) else prompt
        self._tokens: list[int] = []
        self._head: dict[str, Any] = {}
        """Fields common to all chunks; empty before the first."""
        self._has_grammar = any(request.get(name) for name in GRAMMARS)
        self._withheld: dict[str, Any] | None = None
        """Received output that the client has not received yet."""
        self._has_ids = True
        self._has_finish_reason = self.is_over = False
        self._reservation_id = ""
        self._reservation: Reservation | None = None
        self._stream: EngineStream | None = None
        self._prefill_task: asyncio.Future[dict[str, Any]] | None = None
        """Concurrent prefill by another engine."""
        self._failures = 0
        self._failed_workers: set[int] = set()
        self._target: Rank | None = None
        """Rank of a moved reservation until the answer follows."""
        self._has_target = asyncio.Event()
        self._moved_at: float | None = None
        """Time of the unconfirmed move."""
        self._timeout: asyncio.Timeout | None = None
        self._reports: set[asyncio.Task[None]] = set()
        self._report_lock = asyncio.Lock()
        self._n_reported = 0

    # Called for the client

    async def next_chunk(self) -> dict[str, Any] | None:
        """Return the next chunk as if from one engine, or None after the last.

        Raises GatewayError if no engine can continue.
        """
        while not self.is_over:
            try:
                if self._reservation is None:
                    await self._reserve_rank()
                elif self._target is not None:
                    self._switch_rank(self._target, self._reservation)
                elif self._stream is None and len(self._tokens) >= self._request["max_tokens"]:
                    return self._make_last_chunk()
                elif self._stream is None:
                    await self._open_stream(self._reservation)
                else:
                    return await self._read_chunk(self._stream)
            except RankChange:
                continue
            except EngineError as error:
                await self._handle_failure(error)
        return None

    def count_usage(self) -> dict[str, int]:
        prompt, output = len(self._prompt or ()), len(self._tokens)
        total = prompt + output
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total}

    async def end(self) -> None:
        """Free the reservation: the answer is complete, failed, or abandoned."""
        self._close_stream()
        self._free_reservation("?outcome=ok" if self.is_over else "")
        await asyncio.gather(*self._reports)

    # Called for events of the service

    def note_move(self, reservation_id: str, to: Rank, method: str = "reprefill") -> None:
        """Note the new rank of a reservation; events may repeat and arrive in any order."""
        current = None if self._reservation is None else self._reservation.rank
        is_news = reservation_id == self._reservation_id and to not in (current, self._target)
        if not is_news or not self._can_continue():
            return
        self._target, self._moved_at = to, time.monotonic()
        self._has_target.set()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0.0)  # interrupts any wait
        if method == "transfer":
            # This gateway carries no caches: the target computes the prompt again.
            self._queue_report("POST", "/migrated", {"ok": False})

    def query_rank(self) -> None:
        """Query the current rank after missed events."""
        self._queue_report("POST", "/renew")

    # From rank to rank

    async def _reserve_rank(self) -> None:
        """Reserve a rank; wait longer for a begun answer. Raises GatewayError."""
        deadline = time.monotonic() + (RESUME_S_MAX if self._head else 0.0)
        while self._reservation is None:
            self._reservation_id = uuid.uuid4().hex
            self._live_answers[self._reservation_id] = self
            try:
                request = self._build_rank_request()
                self._reservation = await self._selector.reserve_rank(
                    self._reservation_id, request, self._failed_workers
                )
            except GatewayError as error:
                if isinstance(error, LostCall):
                    self._free_reservation()
                else:
                    self._drop_reservation()
                pause_s = float(error.retry_after or 1) + random.random()
                if error.status not in (429, 503) or time.monotonic() + pause_s > deadline:
                    raise
                await asyncio.sleep(pause_s)

    def _build_rank_request(self) -> RankRequest:
        model, prompt = self._request["model"], self._request["prompt"]
        # A moved answer would compute the prompt at the decode rank: a pair is replaced instead.
        is_migratable = self._has_ids and not (self._has_grammar or self._selector.has_pairs)
        if self._prompt is None:  # estimate for a text: four characters per token
            return RankRequest(model, None, len(prompt) // 4 + 1, is_migratable)
        token_ids = self._prompt + self._tokens
        return RankRequest(model, token_ids, len(token_ids), is_migratable)

    def _switch_rank(self, target: Rank, previous: Reservation) -> None:
        self._close_stream()
        # The empty selection has no legs: the target computes the prompt, too.
        self._reservation = Reservation(target, previous.block_size, {})
        self._target = None
        self._has_target.clear()

    async def _handle_failure(self, error: EngineError) -> None:
        """Follow the move of the service, or reserve another worker. Raises GatewayError."""
        assert self._reservation is not None
        self._close_stream()
        self._failures += 1
        if self._failures > FAILURES_MAX or not self._can_continue():
            raise GatewayError.from_message(502 if error.is_fault else 503, str(error), "1")
        rank = self._reservation.rank
        if error.is_fault and self._target is None:
            report = {"dp_rank": rank.dp_rank, "outcome": "failure"}
            report |= {"reservation_id": self._reservation_id}
            await self._selector.send_report("POST", f"/workers/{rank.worker_id}/outcome", report)
            if not self._selector.has_pairs:  # the service moves no pairs
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.move_s):
                        await self._has_target.wait()
        if self._target is None:
            self._failed_workers.add(rank.worker_id)
            self._free_reservation()

    def _can_continue(self) -> bool:
        """Whether another engine can compute the rest."""
        is_resumable = self._prompt is not None and self._has_ids and not self._has_grammar
        return not self._has_finish_reason and (is_resumable or not self._head)

    async def _move_prefill(self, rank: Rank, error: EngineError) -> None:
        """Replace the prefill leg, or reserve another pair. Raises GatewayError."""
        if error.is_fault:
            report = {"dp_rank": rank.dp_rank, "outcome": "failure"}
            await self._selector.send_report("POST", f"/workers/{rank.worker_id}/outcome", report)
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise GatewayError.from_message(502 if error.is_fault else 503, str(error), "1")
        reservation = await self._selector.move_prefill(self._reservation_id)
        if reservation is None:
            self._free_reservation()
        else:
            self._reservation = reservation

    def _close_stream(self) -> None:
        if self._prefill_task is not None:
            self._prefill_task.cancel()
            self._prefill_task = None
        if self._stream is not None:
            self._stream.close()
            self._stream, self._withheld = None, None

    def _free_reservation(self, outcome: str = "") -> None:
        if self._reservation_id:
            self._queue_report("DELETE", outcome)
            self._drop_reservation()

    def _drop_reservation(self) -> None:
        """Reset the state of the reservation."""
        self._live_answers.pop(self._reservation_id, None)
        self._reservation_id, self._reservation, self._target, self._moved_at = "", None, None, None
        self._has_target.clear()
        self._n_reported = len(self._tokens)  # the output so far is a part of the next prompt

    # At one rank

    async def _open_stream(self, reservation: Reservation) -> None:
        """Open the stream of the reserved rank. Raises RankChange, EngineError, GatewayError."""
        body = {**self._request, "stream": True, "return_token_ids": True}
        if self._tokens:
            assert self._prompt is not None
            n_done = len(self._tokens)
            body["prompt"] = self._prompt + self._tokens
            body["max_tokens"] -= n_done
            if body.get("min_tokens"):
                body["min_tokens"] = max(0, body["min_tokens"] - n_done)
        if (leg := PrefillLeg.from_selection(reservation.selection)) is not None:
            body = await self._run_prefill(leg, body)
        opening = EngineStream.open(self._engines, reservation.rank, body)
        self._stream = await self._await_within(self._limits.first_token_s, opening)

    async def _run_prefill(self, leg: PrefillLeg, body: Mapping[str, Any]) -> dict[str, Any]:
        """Let another engine compute the prompt; return the body for the reserved rank.

        Raises RankChange, EngineError, GatewayError.
        """
        prefill = leg.prefill(self._engines, body)
        if not leg.is_sequential:
            # The reserved rank waits for the blocks, and fails if the blocks do not arrive.
            self._prefill_task = asyncio.ensure_future(prefill)
            self._prefill_task.add_done_callback(_consume_result)
            return leg.build_decode_body(body, None)
        try:
            reply = await self._await_within(self._limits.first_token_s, prefill)
            decode_body = leg.build_decode_body(body, reply)
        except EngineError as error:
            await self._move_prefill(leg.rank, error)
            raise RankChange from error
        self._queue_report("POST", "/prefill_complete")
        return decode_body

    async def _read_chunk(self, stream: EngineStream) -> dict[str, Any] | None:
        """Return the next chunk of the engine. Raises RankChange, EngineError."""
        while (chunk := await self._receive_chunk(stream)) is not None:
            choices = chunk["choices"]
            chunk["choices"] = [joined for each in choices if (joined := self._join_withheld(each))]
            if chunk["choices"] or not choices:
                return self._render_chunk(chunk)
        self.is_over = True
        return None

    async def _receive_chunk(self, stream: EngineStream) -> dict[str, Any] | None:
        """Return the next chunk, or None if the answer is complete."""
        seconds = self._limits.stall_s if stream.has_begun else self._limits.first_token_s
        try:
            chunk = await self._await_within(seconds, stream.next_chunk())
            if chunk is None and not self._has_finish_reason:
                raise EngineError("the stream ended without a finish_reason")
        except EngineError:
            if not self._has_finish_reason:
                raise
            return None
        if chunk is not None and not stream.has_begun:
            stream.has_begun = True
            self._report_first_token()
        return chunk

    def _join_withheld(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return the choice joined with withheld output, or None while the text is incomplete.

        A token without text is a part of a character. After a prompt with such an end, an engine
        would not write the rest, so the next rank computes withheld tokens again.
        """
        if self._withheld is not None:
            merge_choice(self._withheld, choice)
            choice = self._withheld
        is_short = len(choice.get("token_ids") or ()) < WITHHELD_TOKENS_MAX
        is_withheld = is_short and not choice["text"] and choice.get("finish_reason") is None
        self._withheld = choice if is_withheld else None
        return None if is_withheld else choice

    def _render_chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Count the tokens of the chunk and return the chunk for the client."""
        for choice in chunk["choices"]:
            self._record_choice(choice)
        if chunk.get("usage"):
            chunk["usage"] = self.count_usage()
        if not self._head:
            self._head = {name: chunk[name] for name in COMMON_FIELDS if name in chunk}
        return chunk | self._head

    def _record_choice(self, choice: dict[str, Any]) -> None:
        token_ids = choice.pop("token_ids", None) or []
        prompt = choice.pop("prompt_token_ids", None)
        self._prompt = self._prompt or prompt
        self._has_ids &= bool(token_ids) or not choice["text"]
        if self._request.get("return_token_ids"):
            choice["token_ids"] = token_ids
            if not self._head:
                choice["prompt_token_ids"] = self._prompt
        self._tokens += token_ids
        if token_ids:
            self._failures = 0
        self._has_finish_reason = choice.get("finish_reason") is not None
        self._report_blocks()

    def _make_last_chunk(self) -> dict[str, Any]:
        """Return the last chunk for an engine that failed after the last token."""
        self._has_finish_reason = self.is_over = True
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
        return {"choices": [choice | {"token_ids": []}], **self._head}

    async def _await_within(self, seconds: float, work: Awaitable[T]) -> T:
        """Await within a time limit. Raises EngineError at the limit, RankChange on a move."""
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                return await work
        except TimeoutError:
            if self._target is not None:
                raise RankChange from None
            raise EngineError(f"the engine sent nothing for {seconds} s") from None
        finally:
            self._timeout = None

    # Reports about the reservation

    def _report_first_token(self) -> None:
        """Report the first token."""
        if self._moved_at is None:
            verb = "/first_token" if self._selector.has_pairs else "/prefill_complete"
            self._queue_report("POST", verb)
            return
        took_ms = 1000.0 * (time.monotonic() - self._moved_at)
        self._queue_report("POST", "/migrated", {"ok": True, "took_ms": took_ms})
        self._moved_at = None

    def _report_blocks(self) -> None:
        assert self._reservation is not None
        size = self._reservation.block_size
        while len(self._tokens) - self._n_reported >= size and len(self._reports) < REPORTS_MAX:
            self._n_reported += size
            self._queue_report("POST", "/output_block")

    def _queue_report(self, method: str, verb: str, body: Mapping[str, Any] | None = None) -> None:
        """Queue a report; reports keep the order and are not awaited."""
        if self._reservation_id:
            sending = self._send_report(method, self._reservation_id, verb, body)
            report = asyncio.create_task(sending)
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)

    async def _send_report(
        self, method: str, reservation_id: str, verb: str, body: Mapping[str, Any] | None
    ) -> None:
        async with self._report_lock:
            path = f"/reservations/{reservation_id}{verb}"
            response = await self._selector.send_report(method, path, body)
        if "migrated_to" in response:
            self.note_move(reservation_id, Rank.from_record(response["migrated_to"]))


def _consume_result(prefill: "asyncio.Future[dict[str, Any]]") -> None:
    """Retrieve the error of a prefill; the failure shows at the other engine."""
    if not prefill.cancelled():
        prefill.exception()


def merge_choice(whole: dict[str, Any], choice: Mapping[str, Any]) -> None:
    """Append a chunk to a whole answer: texts and lists grow, other fields take the last value."""
    for name, value in choice.items():
        previous = whole.get(name)
        if previous is None or not (name == "text" or isinstance(value, list | dict | None)):
            whole[name] = value
        elif isinstance(value, dict):  # log-probabilities
            merge_choice(previous, value)
        elif value is not None:
            whole[name] = previous + value
