"""The policies that are compiled in, behind one helper and a few entries.

A plan names its policy by a number, so that every kernel can place prompts by whatever policy the
process runs: `place_by_plan` has one branch for each.  It is compiled once; kernels find its
address in the plan and call it there (`call_place`).
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.exported_kernels import exported
from indexer.index.state_kernels import MUTEX, i64_view
from indexer.mutex_kernels import enter, leave
from select_service.core.decide import reference_kernels as reference
from select_service.core.decide.placement_kernels import NOBODY, PLACE, TERMS
from select_service.core.decide.plan_layout import INDEX, PLACE_AT, POLICY

REFERENCE = 0


@compiled()
def place_by_plan(plan, path, sequence, eligible, factors, isl_tokens, pinned, draw):
    """The slot for a prompt, NOBODY when none is eligible; arguments: see `placement_kernels`.

    Fills MATCHED, HOLDING, LEADING, RUNNING, COSTS and SUMMARY of the plan, and changes nothing
    else.  To be called under the lock of the index.  O(blocks + slots)
    """
    if plan[POLICY] == REFERENCE:
        return reference.place(plan, path, sequence, eligible, factors, isl_tokens, pinned, draw)
    return np.int64(NOBODY)


_address_of_place, call_place = exported(PLACE, place_by_plan)


@compiled("int64()")
def address_of_place():
    """For PLACE_AT."""
    return _address_of_place()


@compiled(PLACE)
def place(plan, path, sequence, eligible, factors, isl_tokens, pinned, draw):
    """`place_by_plan` under the lock of the index, for Python."""
    mutex = i64_view(plan, INDEX)[MUTEX]
    thread = enter(mutex)
    given = (plan, path, sequence, eligible, factors, isl_tokens, pinned, draw)
    slot = call_place(plan[PLACE_AT], given)
    leave(mutex, thread)
    return slot


@compiled(TERMS)
def fill_terms(plan, eligible, factors, isl_tokens, n_blocks, pinned, out):
    """What the costs of the last placement were made of; nothing was booked since.

    n_blocks: of the prompt;  out: float64[n_terms, n_slots], rows as the policy names them
    """
    if plan[POLICY] == REFERENCE:
        reference.fill_terms(plan, eligible, factors, isl_tokens, n_blocks, pinned, out)
