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
