"""Entry points of the ledger operations, for Python and for kernels that change reservations.

`export_addresses` compiles each operation once and stores the addresses in the header.  Python
calls the functions here; other kernels use `call_book` and the like, with the address first and the
arguments as a tuple.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

from indexer.index.header_kernels import HASHES, HEADER
from indexer.jit.decorators import compiled, intrinsic
from indexer.jit.function_pointers import export_function
from select_service.core.load.compiled import ledger_kernels as verbs
from select_service.core.load.compiled import observation_kernels as observations
from select_service.core.load.compiled.ledger_layout import (
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

_address_of_book, call_book = export_function(
    f"int64({HEADER}, {HEADER}, {_NAME}, {HASHES}, {HASHES})", verbs.book_reservation
)
_address_of_renew, call_renew = export_function(
    f"int64({HEADER}, {_NAME}, float64)", verbs.renew_reservation
)
_address_of_complete, call_complete = export_function(
    f"int64({HEADER}, {_NAME}, float64)", verbs.complete_reservation
)
_address_of_complete_row, _call_complete_row = export_function(
    f"int64({HEADER}, int64)", verbs.complete_row
)
_address_of_output_block, call_output_block = export_function(
    f"int64({HEADER}, {_NAME}, float64, float64)", verbs.add_output_block
)
_address_of_release, call_release = export_function(
    f"int64({HEADER}, {_NAME})", verbs.release_reservation
)
_address_of_release_row, _call_release_row = export_function(
    f"int64({HEADER}, int64, boolean)", verbs.release_row
)


@compiled(f"void({HEADER})")
def export_addresses(h):
    """Store the addresses of the operations in the header."""
    h[BOOK] = _address_of_book()
    h[RENEW] = _address_of_renew()
    h[COMPLETE], h[COMPLETE_ROW] = _address_of_complete(), _address_of_complete_row()
    h[OUTPUT_BLOCK] = _address_of_output_block()
    h[RELEASE], h[RELEASE_ROW] = _address_of_release(), _address_of_release_row()


@intrinsic
def name_view(typingctx, data, at, length):
    """Return a view of `length` bytes from `at` on, uint8[length], without a bounds check."""
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


@compiled(f"int64({HEADER}, {HEADER}, {_ID}, {HASHES}, {HASHES})")
def book_reservation(h, load, name, hashes, prompt):
    return call_book(h[BOOK], (h, load, name_view(name, 0, len(name)), hashes, prompt))


@compiled(f"int64({HEADER}, {_ID}, float64)")
def renew_reservation(h, name, now):
    return call_renew(h[RENEW], (h, name_view(name, 0, len(name)), now))


@compiled(f"int64({HEADER}, {_ID}, float64)")
def complete_reservation(h, name, now):
    return call_complete(h[COMPLETE], (h, name_view(name, 0, len(name)), now))


@compiled(f"int64({HEADER}, int64)")
def complete_row(h, row):
    return _call_complete_row(h[COMPLETE_ROW], (h, row))


@compiled(f"int64({HEADER}, {_ID}, float64, float64)")
def add_output_block(h, name, weight, now):
    given = (h, name_view(name, 0, len(name)), weight, now)
    return call_output_block(h[OUTPUT_BLOCK], given)


@compiled(f"int64({HEADER}, {_ID})")
def release_reservation(h, name):
    return call_release(h[RELEASE], (h, name_view(name, 0, len(name))))


@compiled(f"int64({HEADER}, int64, boolean)")
def release_row(h, row, counts_report):
    return _call_release_row(h[RELEASE_ROW], (h, row, counts_report))


@compiled(f"void({HEADER}, int64, float64)")
def observe_first_token(h, row, now):
    observations.observe_first_token(h, row, now)


@compiled(f"int64({HEADER}, {_ID})")
def find_reservation(h, name):
    return verbs.find_reservation(h, name_view(name, 0, len(name)))
