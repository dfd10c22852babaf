"""The readers of lists of numbers as separate compiled entries."""

# mypy: ignore-errors
# The decorator erases the signature, so type checks here would prove nothing.

from indexer.jit.decorators import READ_ONLY, compiled
from select_service.fastpath.parsing import number_list_kernels

BYTES = READ_ONLY.format("uint8")


@compiled(f"UniTuple(int64, 2)({BYTES}, int64, int64, uint64[::1])")
def read_hashes(data, at, end, out):
    """Read the hashes behind the bracket before `at`."""
    return number_list_kernels.read_hashes(data, at, end, out)


@compiled(f"UniTuple(int64, 2)({BYTES}, int64, int64, uint32[::1])")
def read_tokens(data, at, end, out):
    """Read the tokens behind the bracket before `at`."""
    return number_list_kernels.read_tokens(data, at, end, out)
