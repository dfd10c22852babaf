"""Counting of decisions about pairs and of booked pairs (pair_traffic_layout)."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, I, f64_view, i64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.histogram_kernels import count_tokens
from select_service.core.pairs.pair_layout import (
    ENTERING,
    GROUP,
    HOST,
    LEAVING,
    NO_HOST,
    TOKEN_S,
)
from select_service.core.pairs.pair_traffic_layout import (
    CACHED_TOKENS,
    DECIDED_LOCAL,
    DECIDED_REMOTE,
    LINK_US,
    LOCAL_BINS,
    LOCAL_TOKENS,
    MOVED_TOKENS,
    N_LOCAL,
    PROMPT_TOKENS,
    UNKNOWN_LINK_TOKENS,
)


@compiled(f"void({HEADER}, boolean, int64, int64)")
def count_decision(decided, is_local, isl_tokens, cached):
    """Count a decision.  cached: prompt tokens that the rank of the prefill holds"""
    decided[DECIDED_LOCAL if is_local else DECIDED_REMOTE] += 1
    decided[PROMPT_TOKENS] += isl_tokens
    decided[CACHED_TOKENS] += min(isl_tokens, cached)


@compiled(f"void({HEADER}, int64)")
def count_local(words, tokens):
    """Count a pair on a single rank.  tokens: prompt tokens to be computed"""
    words[N_LOCAL] += 1
    words[LOCAL_TOKENS] += tokens
    count_tokens(words, LOCAL_BINS, tokens)


@compiled()
def _token_s(pair, out, into):
    """Return the seconds that a token needs from group to group on the network; NaN: unknown."""
    host, token_s = i64_view(pair, HOST), f64_view(pair, TOKEN_S)
    if host[out] != NO_HOST and host[out] == host[into]:
        return 0.0
    # The slower link of both hosts decides; neither is assumed.
    if np.isnan(token_s[out]) or np.isnan(token_s[into]):
        return np.nan
    return max(token_s[out], token_s[into])


@compiled(f"void({HEADER}, {HEADER}, int64, int64, int64)")
def count_move(words, pair, prefill, decode, tokens):
    """Count the tokens that a pair moves, also again after a leg has left its rank.

    pair: header of a `PairPlacer` (pair_layout)
    prefill, decode: slots of the legs
    """
    words[MOVED_TOKENS] += tokens
    group = i64_view(pair, GROUP)
    seconds = _token_s(pair, group[prefill], group[decode])
    if np.isnan(seconds):
        words[UNKNOWN_LINK_TOKENS] += tokens
    else:
        words[LINK_US] += I(np.rint(seconds * tokens * 1e6))


@compiled()
def queue_transfer(pair, out, into, tokens):
    """Add tokens that wait for the links from group to group, as `PairPlacer.add_transfer`."""
    host = i64_view(pair, HOST)
    if host[out] == host[into]:
        return
    if host[out] != NO_HOST:
        f64_view(pair, LEAVING)[host[out]] += tokens
    if host[into] != NO_HOST:
        f64_view(pair, ENTERING)[host[into]] += tokens
