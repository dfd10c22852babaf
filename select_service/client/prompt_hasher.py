"""Prompt hashes of the client: tokens are not sent, and no block is hashed twice.  PURE.

The hashes equal those of the service (`indexer.hashing`) but need no compiled code.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, runtime_checkable

from xxhash import xxh3_64_intdigest

from indexer.hashing.seeds import SEED, prompt_seed
from select_service.schemas.workers import WorkerRecord

TOKEN_BYTES = 4


@runtime_checkable
class Tensor(Protocol):
    """A one-dimensional array of numpy, torch or another library."""

    def tolist(self) -> Any: ...


Tokens: TypeAlias = Sequence[int] | Tensor

_pair = struct.Struct("<QQ").pack


class HashedPrompt(TypedDict):
    """Fields of a request that replace `token_ids`.

    block_hashes, sequence_hashes: hashes of all complete blocks, unsigned 64-bit
    isl_tokens: length of the prompt, in tokens
    """

    block_hashes: list[int]
    sequence_hashes: list[int]
    isl_tokens: int


class PromptHasher:
    """Hashes of a prompt that grows at its end.

    Adapter and salt are part of the hashes. A request may name them as well, for logs.
    """

    def __init__(
        self,
        block_size: int,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        is_eagle: bool = False,
    ) -> None:
        """block_size, is_eagle: values of the workers, see `make_hasher`.  Raises ValueError."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self._stride = TOKEN_BYTES * block_size
        # EAGLE hashes the first token of the next block with each block.
        self._window = self._stride + TOKEN_BYTES * is_eagle
        self._seed = prompt_seed(lora_name, cache_salt)
        self._blocks: list[int] = []
        self._sequence: list[int] = []
        self._isl_tokens = 0
        self._rest = b""
        """Tokens behind the last complete block, 4 bytes each."""

    def extend(self, tokens: Tokens) -> None:
        """Append tokens to the prompt.  Raises ValueError and then changes nothing."""
        message = _token_bytes(tokens)
        self._isl_tokens += len(message) // TOKEN_BYTES
        message = self._rest + message
        window, seed = self._window, self._seed
        starts = range(0, len(message) - window + 1, self._stride)
        new = [xxh3_64_intdigest(message[at : at + window], seed) for at in starts]
        # Kept as bytes: the next call joins them without packing tokens again.
        self._rest = message[len(new) * self._stride :]
        if new and not self._blocks:
            self._sequence.append(new[0])
        self._chain(new if self._blocks else new[1:])
        self._blocks += new

    def _chain(self, blocks: list[int]) -> None:
        sequence = self._sequence
        for block in blocks:
            sequence.append(xxh3_64_intdigest(_pair(sequence[-1], block), SEED))

    def prompt(self) -> HashedPrompt:
        """Return the hashes of all tokens so far, as a copy."""
        return {
            "block_hashes": self._blocks.copy(),
            "sequence_hashes": self._sequence.copy(),
            "isl_tokens": self._isl_tokens,
        }


def make_hasher(
    workers: Iterable[WorkerRecord], lora_name: str | None = None, cache_salt: str | None = None
) -> PromptHasher | None:
    """Return a hasher for the workers of a model and tenant; None means no schedulable worker."""
    for worker in workers:
        if worker.lifecycle == "schedulable" and worker.block_size:
            return PromptHasher(
                worker.block_size, lora_name, cache_salt, is_eagle=bool(worker.is_eagle)
            )
    return None


def _token_bytes(tokens: Tokens) -> bytes:
    """Return the tokens as little-endian uint32.  Raises ValueError."""
    numbers = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    try:
        return struct.pack(f"<{len(numbers)}I", *numbers)
    except struct.error as error:
        raise ValueError(f"tokens are integers from 0 to {2**32 - 1}: {error}") from None
