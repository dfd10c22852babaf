"""What a lease has to tell, in order and coalesced.  PURE."""

from collections.abc import Sequence
from enum import Enum
from typing import Literal

Outcome = Literal["ok", "failure"] | None
"""How a request went; None: it was abandoned, and nobody is to blame."""

BLOCKS_AT_ONCE_MAX = 8
"""Calls of output_block that are made together when a lease lags behind."""


class Verb(Enum):
    PREFILL_COMPLETE = "/prefill_complete"
    OUTPUT_BLOCK = "/output_block"
    RENEW = "/renew"
    FREE = ""


class Progress:
    """First token, output blocks, renewals, end: what happened and was not told yet."""

    def __init__(self, block_size: int) -> None:
        """block_size: tokens after which a block of output is told; 0: never"""
        self._block_size = block_size
        self._tokens = 0
        self._blocks_due = 0
        self._first_token = self._first_due = self._renew_due = False
        self.outcome: Outcome = None
        self._end_due = self.has_ended = self.is_lost = False

    def first_token(self) -> None:
        """Counts once."""
        self._first_due = self._first_due or not self._first_token
        self._first_token = True

    def tokens(self, n: int) -> None:
        """So many more output tokens.  The first of them is the first token."""
        self.first_token()
        self._tokens += n
        if self._block_size:
            self._blocks_due += self._tokens // self._block_size
            self._tokens %= self._block_size

    def renew(self) -> None:
        self._renew_due = True

    def end(self, outcome: Outcome) -> None:
        """Counts once."""
        if not self.has_ended:
            self.outcome, self._end_due, self.has_ended = outcome, True, True

    def lose(self) -> None:
        """No selector knows it any more: but for its end there is nothing to tell."""
        self.is_lost = True

    def again(self, verb: Verb) -> None:
        """It could not be told.  What may be told later is due once more."""
        self._first_due = self._first_due or verb is Verb.PREFILL_COMPLETE

    def next(self) -> Sequence[Verb]:
        """What is to be told now, all of it together; empty: nothing."""
        if self.is_lost:
            self._first_due = self._renew_due = False
            self._blocks_due = 0
        if self._first_due:
            self._first_due = self._renew_due = False
            return (Verb.PREFILL_COMPLETE,)
        if self._blocks_due:
            n = min(BLOCKS_AT_ONCE_MAX, self._blocks_due)
            self._blocks_due -= n
            self._renew_due = False
            return (Verb.OUTPUT_BLOCK,) * n
        if self._end_due:
            self._end_due = False
            return (Verb.FREE,)
        if self._renew_due:
            self._renew_due = False
            return (Verb.RENEW,)
        return ()
