"""Counting what becomes of reservations (observed_layout): some nanoseconds in each verb."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import f64_view, i64_view
from select_service.core.load.bin_kernels import count_prompt, count_time, count_tokens
from select_service.core.load.bins import TOKENS_MAX
from select_service.core.load.bits_kernels import bits_of, float_of
from select_service.core.load.kernels import active_blocks_of
from select_service.core.load.ledger_layout import (
    BLOCKS,
    BOOKED_AT,
    FADED,
    FIELDS,
    IS_PREFILLING,
    LEFT_BEFORE,
    LIVED,
    LIVED_NUMBERS,
    LOAD,
    NAMED,
    OBSERVED,
    SLOT,
    SPOKE_AT,
    SUM,
    SUM_NUMBERS,
    SUMS,
    WAS_MOVED,
    WHOLE,
    WORK,
)
from select_service.core.load.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    LEFT,
    N_TOTALS,
    ONLY_DECODE,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.load.observed_layout import (
    BLOCK_SIZE,
    DECODES,
    ENDED,
    ITL,
    ITL_US,
    KEPT,
    OSL,
    OSL_SUM,
    PREFILLS,
    PROMPTS,
    SAMPLE_NUMBERS,
    SAMPLES_MAX,
    SEEN,
    STRIDE,
    TTFT,
    TTFT_US,
)

I64 = np.int64


@compiled()
def observed_of(h, number):
    """What is counted for a sum; empty where nothing is, as for reservations of peers."""
    return i64_view(i64_view(h, SUMS), number * SUM_NUMBERS + OBSERVED)


@compiled()
def _halve(observed, begin):
    """Each second sample goes."""
    for k in range(SAMPLES_MAX // 2):
        for n in range(SAMPLE_NUMBERS):
            observed[begin + k * SAMPLE_NUMBERS + n] = observed[begin + 2 * k * SAMPLE_NUMBERS + n]


@compiled(error_model="numpy")
def _sample(observed, at, first, second, third):
    """Keep a sample in the list that begins there, if it is its turn."""
    number = observed[at + SEEN]
    observed[at + SEEN] += 1
    if number % observed[at + STRIDE] != 0:
        return
    begin = at + 3
    if observed[at + KEPT] == SAMPLES_MAX:
        _halve(observed, begin)
        observed[at + KEPT] = SAMPLES_MAX // 2
        observed[at + STRIDE] *= 2
        if number % observed[at + STRIDE] != 0:
            return
    place = begin + observed[at + KEPT] * SAMPLE_NUMBERS
    observed[place], observed[place + 1], observed[place + 2] = first, second, third
    observed[at + KEPT] += 1


@compiled()
def observe_booking(h, load, row, slot, number, isl_tokens, prefill_tokens, work):
    """A row has been booked."""
    lived = i64_view(h, LIVED)
    lived[row * LIVED_NUMBERS + LEFT_BEFORE] = i64_view(load, LEFT)[slot] - work
    lived[row * LIVED_NUMBERS + SPOKE_AT] = 0
    observed = observed_of(h, number)
    if observed.shape[0] == 0:
        return
    isl_tokens = min(max(isl_tokens, 0), TOKENS_MAX)
    uncached = min(max(work, prefill_tokens), isl_tokens)
    only_decode = i64_view(load, ONLY_DECODE)[slot]
    count_prompt(observed, PROMPTS, only_decode, isl_tokens, uncached)


@compiled()
def observe_prefill(h, rows, row, now):
    """Its prefill ends, unless it has ended before; to be called first.

    One that has moved may end once more: its first token is long there.
    """
    at = row * FIELDS
    observed, lived = observed_of(h, rows[at + SUM]), i64_view(h, LIVED)
    if rows[at + IS_PREFILLING] == 0 or observed.shape[0] == 0:
        return
    has_spoken = lived[row * LIVED_NUMBERS + SPOKE_AT] != 0
    lived[row * LIVED_NUMBERS + SPOKE_AT] = bits_of(now)
    if has_spoken or i64_view(i64_view(rows, at + LOAD), ONLY_DECODE)[rows[at + SLOT]] != 0:
        return
    seconds = max(now - float_of(rows[at + BOOKED_AT]), 0.0)
    observed[TTFT_US] += I64(seconds * 1e6)
    count_time(observed, TTFT, seconds)
    left = lived[row * LIVED_NUMBERS + LEFT_BEFORE]
    if rows[at + WORK] != 0 and left != WAS_MOVED:
        _sample(observed, PREFILLS, rows[at + WORK], I64(seconds * 1e9), left)


@compiled(error_model="numpy")
def observe_output(h, rows, row, now):
    """One more output block; to be called before it is booked."""
    at = row * FIELDS
    observed, lived = observed_of(h, rows[at + SUM]), i64_view(h, LIVED)
    since = float_of(lived[row * LIVED_NUMBERS + SPOKE_AT])
    lived[row * LIVED_NUMBERS + SPOKE_AT] = bits_of(now)
    if since == 0.0 or observed.shape[0] == 0:
        return
    seconds = max(now - since, 0.0)
    a_token = seconds / observed[BLOCK_SIZE]
    observed[ITL_US] += I64(a_token * 1e6)
    count_time(observed, ITL, a_token)
    if seconds > 0.0:
        load, slot = i64_view(rows, at + LOAD), rows[at + SLOT]
        totals, total = i64_view(load, TOTALS), slot * N_TOTALS
        whole, fractional = totals[total + WHOLE_BLOCKS], totals[total + FRACTIONAL_BLOCKS]
        active = I64(active_blocks_of(whole, fractional, f64_view(load, FRACTIONS)[slot]))
        _sample(observed, DECODES, totals[total + REQUESTS], active, I64(seconds * 1e9))


@compiled()
def observe_end(h, rows, row):
    """Its caller frees it; to be called before it is released."""
    at = row * FIELDS
    observed = observed_of(h, rows[at + SUM])
    blocks = rows[at + WHOLE] + rows[at + FADED] - (rows[at + BLOCKS] - rows[at + NAMED])
    if blocks <= 0 or observed.shape[0] == 0:
        return
    tokens = blocks * observed[BLOCK_SIZE]
    observed[ENDED] += 1
    observed[OSL_SUM] += tokens
    count_tokens(observed, OSL, tokens)
