"""Pending events of a lease, in order and merged.  PURE."""

from collections.abc import Sequence
from enum import Enum
from typing import Literal

Outcome = Literal["ok", "failure"] | None
"""Outcome of a request; None means abandoned without blame for the rank."""

CONCURRENT_BLOCKS_MAX = 8
"""Concurrent calls of output_block while a lease catches up."""


class ReservationVerb(Enum):
    PREFILL_COMPLETE = "/prefill_complete"
    FIRST_TOKEN = "/first_token"
    OUTPUT_BLOCK = "/output_block"
    RENEW = "/renew"
    FREE = ""


class LeaseProgress:
    """Events of a lease that are not sent yet: first token, output blocks, renewals, end."""

    def __init__(
        self,
        block_size: int,
        first_token_verb: ReservationVerb = ReservationVerb.PREFILL_COMPLETE,
    ) -> None:
        """block_size: output tokens per reported block; 0 means no reports

        first_token_verb: report of the first token
        """
        self._block_size = block_size
        self._first_token_verb = first_token_verb
        self._prefill_reported = self._prefill_due = False
        self._tokens = 0
        self._blocks_due = 0
        self._first_token = self._first_due = self._renew_due = False
        self.outcome: Outcome = None
        self._end_due = self.has_ended = self.is_lost = False

    def record_first_token(self) -> None:
        """Record the first token; only the first call counts."""
        self._first_due = self._first_due or not self._first_token
        self._first_token = True

    def record_prefill_complete(self) -> None:
        """Record the end of the prefill, before the first token; only the first call counts."""
        if not (self._prefill_reported or self._first_token):
            self._prefill_reported = self._prefill_due = True

    def record_tokens(self, n: int) -> None:
        """Record `n` output tokens; the first of them is the first token."""
        self.record_first_token()
        self._tokens += n
        if self._block_size:
            self._blocks_due += self._tokens // self._block_size
            self._tokens %= self._block_size

    def request_renewal(self) -> None:
        self._renew_due = True

    def record_end(self, outcome: Outcome) -> None:
        """Record the end; only the first call counts."""
        if not self.has_ended:
            self.outcome, self._end_due, self.has_ended = outcome, True, True

    def mark_lost(self) -> None:
        """Note that no selector has the reservation: only the end is sent from now on."""
        self.is_lost = True

    def schedule_again(self, verb: ReservationVerb) -> None:
        """Schedule a verb again that could not be sent; only the end of the prefill and the first
        token can be late.
        """
        if verb is self._first_token_verb:
            self._first_due = True
        elif verb is ReservationVerb.PREFILL_COMPLETE and not self._first_token:
            self._prefill_due = True

    def take_verbs(self) -> Sequence[ReservationVerb]:
        """Return the verbs to send next, all at the same time; empty means none."""
        if self.is_lost:
            self._first_due = self._prefill_due = self._renew_due = False
            self._blocks_due = 0
        if self._first_due:
            # The first token also ends the prefill.
            self._first_due = self._prefill_due = self._renew_due = False
            return (self._first_token_verb,)
        if self._prefill_due:
            self._prefill_due = self._renew_due = False
            return (ReservationVerb.PREFILL_COMPLETE,)
        if self._blocks_due:
            n = min(CONCURRENT_BLOCKS_MAX, self._blocks_due)
            self._blocks_due -= n
            self._renew_due = False
            return (ReservationVerb.OUTPUT_BLOCK,) * n
        # Last of all: a freed reservation accepts no other verb.
        if self._end_due:
            self._end_due = False
            return (ReservationVerb.FREE,)
        if self._renew_due:
            self._renew_due = False
            return (ReservationVerb.RENEW,)
        return ()
