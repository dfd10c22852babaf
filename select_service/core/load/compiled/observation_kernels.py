"""Observation of the course of reservations (observed_layout), some nanoseconds an operation."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import f64_view, i64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.active_load_kernels import active_blocks_of
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.histogram_kernels import (
    count_prompt,
    count_time,
    count_tokens,
)
from select_service.core.load.compiled.ledger_layout import (
    BLOCKS,
    BOOKED_AT,
    DECAYED_BLOCKS,
    FIELDS,
    HASHED_BLOCKS,
    HISTORY,
    HISTORY_NUMBERS,
    IS_PREFILLING,
    ISL_TOKENS,
    LAST_OUTPUT_AT,
    LOAD,
    OBSERVED_PAIR,
    OBSERVED_PART,
    OTHER_PART,
    PREFILL_PART,
    ROWS,
    SLOT,
    SUM,
    SUM_NUMBERS,
    SUMS,
    TOKENS,
    WAS_MOVED,
    WHOLE_REQUEST,
    WHOLE_WEIGHT_BLOCKS,
    WORK,
    WORK_LEFT_BEFORE,
)
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    ONLY_DECODE,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
    WORK_LEFT,
)
from select_service.core.load.compiled.observation_layout import (
    BLOCK_SIZE,
    DECODES,
    ITL,
    ITL_US,
    N_ENDED,
    N_KEPT,
    N_SEEN,
    OSL,
    OSL_SUM,
    PREFILLS,
    PROMPTS,
    SAMPLE_NUMBERS,
    SAMPLES_MAX,
    STRIDE,
    TTFT,
    TTFT_US,
)
from select_service.core.load.histogram_bins import TOKENS_MAX

I64 = np.int64


@compiled()
def observed_counters(h, number):
    """Return the counters of a sum; empty without counters, as for reservations of peers."""
    return i64_view(i64_view(h, SUMS), number * SUM_NUMBERS + OBSERVED_PAIR)


@compiled()
def _halve_samples(observed, begin):
    """Drop every second sample."""
    for k in range(SAMPLES_MAX // 2):
        for n in range(SAMPLE_NUMBERS):
            observed[begin + k * SAMPLE_NUMBERS + n] = observed[begin + 2 * k * SAMPLE_NUMBERS + n]


@compiled(error_model="numpy")
def _store_sample(observed, at, first, second, third):
    """Store a sample in the list starting at `at`, if the stride selects this sample."""
    number = observed[at + N_SEEN]
    observed[at + N_SEEN] += 1
    if number % observed[at + STRIDE] != 0:
        return
    begin = at + 3
    if observed[at + N_KEPT] == SAMPLES_MAX:
        _halve_samples(observed, begin)
        observed[at + N_KEPT] = SAMPLES_MAX // 2
        observed[at + STRIDE] *= 2
        if number % observed[at + STRIDE] != 0:
            return
    place = begin + observed[at + N_KEPT] * SAMPLE_NUMBERS
    observed[place], observed[place + 1], observed[place + 2] = first, second, third
    observed[at + N_KEPT] += 1


@compiled()
def observe_booking(h, rows, row, part):
    """Record the booking of a row.  Call this after entering its prefill.

    part: part of its request
    """
    at, lived = row * FIELDS, i64_view(h, HISTORY)
    load, slot, work = i64_view(rows, at + LOAD), rows[at + SLOT], rows[at + WORK]
    lived[row * HISTORY_NUMBERS + WORK_LEFT_BEFORE] = i64_view(load, WORK_LEFT)[slot] - work
    lived[row * HISTORY_NUMBERS + LAST_OUTPUT_AT] = 0
    lived[row * HISTORY_NUMBERS + OBSERVED_PART] = part
    observed = observed_counters(h, rows[at + SUM])
    if observed.shape[0] == 0 or part == OTHER_PART:
        return
    isl_tokens = min(max(rows[at + ISL_TOKENS], 0), TOKENS_MAX)
    uncached = min(max(work, rows[at + TOKENS]), isl_tokens)
    only_decode = I64(0) if part == WHOLE_REQUEST else i64_view(load, ONLY_DECODE)[slot]
    count_prompt(observed, PROMPTS, only_decode, isl_tokens, uncached)


@compiled()
def observe_prefill(h, rows, row, now):
    """Record the end of a prefill, unless recorded before.  Call this before changing the row.

    A moved reservation may end a second prefill, long after its first token; this end does not
    count.  The prefill leg of a pair has no first token, and a rank for decode that computes a
    prompt itself shows nothing about ranks for prefill.
    """
    at = row * FIELDS
    observed, lived = observed_counters(h, rows[at + SUM]), i64_view(h, HISTORY)
    part = lived[row * HISTORY_NUMBERS + OBSERVED_PART]
    # The decode leg of a pair learns of the prefill's end and of its first token by one call.
    if rows[at + IS_PREFILLING] == 0 or observed.shape[0] == 0 or part == OTHER_PART:
        return
    has_spoken = lived[row * HISTORY_NUMBERS + LAST_OUTPUT_AT] != 0
    lived[row * HISTORY_NUMBERS + LAST_OUTPUT_AT] = float_to_bits(now)
    only_decode = i64_view(i64_view(rows, at + LOAD), ONLY_DECODE)[rows[at + SLOT]] != 0
    if has_spoken or (only_decode and part != WHOLE_REQUEST):
        return
    seconds = max(now - float_from_bits(rows[at + BOOKED_AT]), 0.0)
    if part != PREFILL_PART:
        observed[TTFT_US] += I64(seconds * 1e6)
        count_time(observed, TTFT, seconds)
    if only_decode:
        return
    left = lived[row * HISTORY_NUMBERS + WORK_LEFT_BEFORE]
    if rows[at + WORK] != 0 and left != WAS_MOVED:
        _store_sample(observed, PREFILLS, rows[at + WORK], I64(seconds * 1e9), left)


@compiled()
def observe_first_token(h, row, now):
    """Record the first token of a decode leg, once; other reservations are ignored.

    A decode leg has no prefill that could end.  The replica that booked a pair counts its first
    token: it alone has the time at which the request arrived.
    """
    rows, lived = i64_view(h, ROWS), i64_view(h, HISTORY)
    observed, at = observed_counters(h, rows[row * FIELDS + SUM]), row * HISTORY_NUMBERS
    has_spoken = lived[at + LAST_OUTPUT_AT] != 0
    if observed.shape[0] == 0 or has_spoken or lived[at + OBSERVED_PART] != OTHER_PART:
        return
    lived[at + LAST_OUTPUT_AT] = float_to_bits(now)
    seconds = max(now - float_from_bits(rows[row * FIELDS + BOOKED_AT]), 0.0)
    observed[TTFT_US] += I64(seconds * 1e6)
    count_time(observed, TTFT, seconds)


@compiled(error_model="numpy")
def observe_output(h, rows, row, now):
    """Record an output block.  Call this before booking the block."""
    at = row * FIELDS
    observed, lived = observed_counters(h, rows[at + SUM]), i64_view(h, HISTORY)
    since = float_from_bits(lived[row * HISTORY_NUMBERS + LAST_OUTPUT_AT])
    lived[row * HISTORY_NUMBERS + LAST_OUTPUT_AT] = float_to_bits(now)
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
        _store_sample(observed, DECODES, totals[total + REQUESTS], active, I64(seconds * 1e9))


@compiled()
def observe_end(h, rows, row):
    """Record the end reported by the caller.  Call this before the release."""
    at = row * FIELDS
    observed = observed_counters(h, rows[at + SUM])
    blocks = (
        rows[at + WHOLE_WEIGHT_BLOCKS]
        + rows[at + DECAYED_BLOCKS]
        - (rows[at + BLOCKS] - rows[at + HASHED_BLOCKS])
    )
    if blocks <= 0 or observed.shape[0] == 0:
        return
    tokens = blocks * observed[BLOCK_SIZE]
    observed[N_ENDED] += 1
    observed[OSL_SUM] += tokens
    count_tokens(observed, OSL, tokens)
