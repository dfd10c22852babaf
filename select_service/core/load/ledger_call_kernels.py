"""How the verbs of the ledger are called: by Python, and by kernels that change reservations.

The verbs are compiled once, in `say_addresses`; whoever calls one finds its address in the header.
Python calls the entries, other kernels `call_book` and its like, with the address first and then
the arguments as a tuple.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled, intrinsic
from indexer.exported_kernels import exported
from indexer.index.state_kernels import HASHES, HEADER
from select_service.core.load import ledger_kernels as verbs
from select_service.core.load.ledger_layout import (
    BOOK,
    COMPLETE,
    COMPLETE_ROW,
    OUTPUT_BLOCK,
    RELEASE,
    RELEASE_ROW,
    RENEW,
)

_ID = "Bytes(uint8, 1, 'C')"
_NAME = "uint8[::1]"
_BOOKED = (
    f"{HASHES}, int64, int64, int64, int64, boolean, uint64, int64, int64, float64, float64,"
    f" float64, int64, int64, {HASHES}"
)

_address_of_book, call_book = exported(
    f"int64({HEADER}, {HEADER}, {_NAME}, int64, {_BOOKED})", verbs.book
)
_address_of_renew, call_renew = exported(f"int64({HEADER}, {_NAME}, float64)", verbs.renew)
_address_of_complete, call_complete = exported(f"int64({HEADER}, {_NAME}, float64)", verbs.complete)
_address_of_complete_row, _call_complete_row = exported(
    f"int64({HEADER}, int64)", verbs.complete_row
)
_address_of_output_block, call_output_block = exported(
    f"int64({HEADER}, {_NAME}, float64, float64)", verbs.add_output_block
)
_address_of_release, call_release = exported(f"int64({HEADER}, {_NAME})", verbs.release)
_address_of_release_row, _call_release_row = exported(
    f"int64({HEADER}, int64, boolean)", verbs.release_row
)


@compiled(f"void({HEADER})")
def say_addresses(h):
    """Let the header say where the verbs are."""
    h[BOOK] = _address_of_book()
    h[RENEW] = _address_of_renew()
    h[COMPLETE], h[COMPLETE_ROW] = _address_of_complete(), _address_of_complete_row()
    h[OUTPUT_BLOCK] = _address_of_output_block()
    h[RELEASE], h[RELEASE_ROW] = _address_of_release(), _address_of_release_row()


@intrinsic
def name_in(typingctx, data, at, length):
    """uint8[length], a view of bytes from `at` on, which must be there."""
    from numba import types
    from numba.core import cgutils
    from numba.np import arrayobj

    kind = types.Array(types.uint8, 1, "C")

    def codegen(context, builder, signature, args):
        begin = context.make_array(signature.args[0])(context, builder, args[0]).data
        size = context.get_constant(types.intp, 1)
        view = arrayobj.make_array(kind)(context, builder)
        arrayobj.populate_array(
            view,
            data=builder.bitcast(cgutils.pointer_add(builder, begin, args[1]), view.data.type),
            shape=[args[2]],
            strides=[size],
            itemsize=size,
            meminfo=None,
        )
        return view._getvalue()

    return kind(data, types.int64, types.int64), codegen


@compiled(
    f"int64({HEADER}, {HEADER}, {_ID}, int64, {_BOOKED})",
)
def book(
    h,
    load,
    name,
    slot,
    hashes,
    named,
    whole,
    isl_tokens,
    prefill_tokens,
    prefilling,
    worker_id,
    dp_rank,
    number,
    booked_at,
    now,
    lease_s,
    work,
    cached,
    prompt,
):
    given = (h, load, name_in(name, 0, len(name)), slot, hashes, named, whole, isl_tokens)
    more = (prefill_tokens, prefilling, worker_id, dp_rank, number, booked_at, now, lease_s)
    return call_book(h[BOOK], given + more + (work, cached, prompt))


@compiled(f"int64({HEADER}, {_ID}, float64)")
def renew(h, name, now):
    return call_renew(h[RENEW], (h, name_in(name, 0, len(name)), now))


@compiled(f"int64({HEADER}, {_ID}, float64)")
def complete(h, name, now):
    return call_complete(h[COMPLETE], (h, name_in(name, 0, len(name)), now))


@compiled(f"int64({HEADER}, int64)")
def complete_row(h, row):
    return _call_complete_row(h[COMPLETE_ROW], (h, row))


@compiled(f"int64({HEADER}, {_ID}, float64, float64)")
def add_output_block(h, name, weight, now):
    given = (h, name_in(name, 0, len(name)), weight, now)
    return call_output_block(h[OUTPUT_BLOCK], given)


@compiled(f"int64({HEADER}, {_ID})")
def release(h, name):
    return call_release(h[RELEASE], (h, name_in(name, 0, len(name))))


@compiled(f"int64({HEADER}, int64, boolean)")
def release_row(h, row, tells):
    return _call_release_row(h[RELEASE_ROW], (h, row, tells))


@compiled(f"int64({HEADER}, {_ID})")
def find(h, name):
    return verbs.find(h, name_in(name, 0, len(name)))
