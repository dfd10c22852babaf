"""Compiled loops of the hold: which ranks have little enough work left to begin soon."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HEADER, MUTEX, f64_view, i64_view
from indexer.mutex_kernels import enter, leave
from select_service.core.decide.plan_layout import BLOCK_SIZE, FOLLOWS, INDEX, LOAD, RANKS
from select_service.core.decide.work_kernels import REPORTED_MIN
from select_service.core.load.bits_kernels import float_of
from select_service.core.load.load_layout import LEFT, REPORTED
from select_service.core.load.progress_kernels import look_at_progress
from select_service.core.workers.rank_layout import BATCH_TOKENS


@compiled()
def _knows_work(plan, load):
    """Does anybody know what is left: are progress and the ends of prefills followed?"""
    return plan[FOLLOWS] != 0 and float_of(load[REPORTED]) >= REPORTED_MIN


@compiled()
def _most_left(batch_tokens, tokens_max, batches_max):
    """Tokens that may be left on a rank with such a batch budget, infinite: it is not known."""
    budget = batches_max * batch_tokens if batch_tokens < np.inf else 0.0
    return max(tokens_max, budget)


@compiled()
def _fill_room(plan, load, candidates, tokens_max, batches_max, out):
    left = i64_view(load, LEFT)
    batch_tokens = f64_view(i64_view(plan, RANKS), BATCH_TOKENS)
    n_ranks = 0
    for slot in range(candidates.shape[0]):
        most = _most_left(batch_tokens[slot], tokens_max, batches_max)
        out[slot] = candidates[slot] & (left[slot] <= most)
        n_ranks += out[slot]
    return n_ranks


@compiled(f"int64({HEADER}, boolean[::1], float64, float64, boolean[::1])")
def fill_room(plan, candidates, tokens_max, batches_max, out):
    """out[slot] = is a candidate and has at most so much work left; returns how many have.

    plan:        the header of a `Placing` (plan_layout), whose index is locked meanwhile
    tokens_max:  tokens of prefill;  batches_max: times its batch budget, whichever is more
    All candidates have room where nobody knows what is left.  O(slots) besides the progress.
    """
    index, load = i64_view(plan, INDEX), i64_view(plan, LOAD)
    thread = enter(index[MUTEX])
    if _knows_work(plan, load):
        look_at_progress(index, load, plan[BLOCK_SIZE])
    else:
        tokens_max = np.inf
    n_ranks = _fill_room(plan, load, candidates, tokens_max, batches_max, out)
    leave(index[MUTEX], thread)
    return n_ranks
