"""Changes of the load of one partition, each a step under the lock that its header names.

Only what placements read has to be locked; nobody but the ledger changes anything.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.mutex_kernels import enter, leave
from select_service.core.load import kernels
from select_service.core.load.load_layout import MUTEX


@compiled()
def add_load(h, slot, hashes, prefill_tokens, nameless):
    """See `kernels.add_load`."""
    thread = enter(h[MUTEX])
    said = kernels.add_load(h, slot, hashes, prefill_tokens, nameless)
    leave(h[MUTEX], thread)
    return said


@compiled()
def remove_load(h, slot, hashes, prefill_tokens, whole, faded, fraction):
    """See `kernels.remove_load`."""
    thread = enter(h[MUTEX])
    missing = kernels.remove_load(h, slot, hashes, prefill_tokens, whole, faded, fraction)
    leave(h[MUTEX], thread)
    return missing


@compiled()
def remove_tokens(h, slot, prefill_tokens):
    """See `kernels.remove_tokens`."""
    thread = enter(h[MUTEX])
    kernels.remove_tokens(h, slot, prefill_tokens)
    leave(h[MUTEX], thread)


@compiled()
def add_output(h, slot):
    """See `kernels.add_output`."""
    thread = enter(h[MUTEX])
    kernels.add_output(h, slot)
    leave(h[MUTEX], thread)


@compiled()
def add_decay(h, slot, hashes, whole, faded, fraction, weight):
    """See `kernels.add_decay`."""
    thread = enter(h[MUTEX])
    missing = kernels.add_decay(h, slot, hashes, whole, faded, fraction, weight)
    leave(h[MUTEX], thread)
    return missing
