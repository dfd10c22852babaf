"""Prompts as hashes: tokens need not travel, and nothing is hashed twice.  PURE.

The hashes are the service's own (`indexer.hashing`), made without its compiled code.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, runtime_checkable

from xxhash import xxh3_64_intdigest

from indexer.hashing.seeds import SEED, lora_seed, salted
from select_service.bodies.workers import WorkerRecord

TOKEN_BYTES = 4


@runtime_checkable
class Tensor(Protocol):
    """An array of numpy, torch or another library, of one dimension."""

    def tolist(self) -> Any: ...


Tokens: TypeAlias = Sequence[int] | Tensor

_pair = struct.Struct("<QQ").pack


class HashedPrompt(TypedDict):
    """The fields of a request that stand for `token_ids`.

    block_hashes, sequence_hashes: of each complete block, unsigned;  isl_tokens: all, in tokens
    """

    block_hashes: list[int]
    sequence_hashes: list[int]
    isl_tokens: int


class PromptHasher:
    """One prompt that grows at its end.

    An adapter or a salt is part of the hashes; a request may name them besides, for the log.
    """

    def __init__(
        self,
        block_size: int,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        is_eagle: bool = False,
    ) -> None:
        """block_size, is_eagle: of the workers, see `hasher_of`.  Raises ValueError."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self._stride = TOKEN_BYTES * block_size
        self._window = self._stride + TOKEN_BYTES * is_eagle
        self._seed = lora_seed(lora_name)
        self._first_seed, mm_hash = salted(self._seed, cache_salt)
        self._first_end = b"" if mm_hash is None else mm_hash.to_bytes(8, "little")
        self._blocks: list[int] = []
        self._sequence: list[int] = []
        self._isl_tokens = 0
        self._rest = b""
        """Tokens from the first on that is in no complete block."""

    def extend(self, tokens: Tokens) -> None:
        """More of the prompt.  Raises ValueError, and then nothing has changed."""
        message = _bytes_of(tokens)
        self._isl_tokens += len(message) // TOKEN_BYTES
        message = self._rest + message
        window, seed = self._window, self._seed
        starts = range(0, len(message) - window + 1, self._stride)
        new = [xxh3_64_intdigest(message[at : at + window], seed) for at in starts]
        self._rest = message[len(new) * self._stride :]
        if new and not self._blocks:
            new[0] = xxh3_64_intdigest(message[:window] + self._first_end, self._first_seed)
            self._sequence.append(new[0])
        self._chain(new if self._blocks else new[1:])
        self._blocks += new

    def _chain(self, blocks: list[int]) -> None:
        sequence = self._sequence
        for block in blocks:
            sequence.append(xxh3_64_intdigest(_pair(sequence[-1], block), SEED))

    def prompt(self) -> HashedPrompt:
        """Of all tokens so far; it stays as it is when more come."""
        return {
            "block_hashes": self._blocks.copy(),
            "sequence_hashes": self._sequence.copy(),
            "isl_tokens": self._isl_tokens,
        }


def hasher_of(
    workers: Iterable[WorkerRecord], lora_name: str | None = None, cache_salt: str | None = None
) -> PromptHasher | None:
    """For prompts of one model and tenant, as its workers hash; None: none is schedulable."""
    for worker in workers:
        if worker.lifecycle == "schedulable" and worker.block_size:
            return PromptHasher(
                worker.block_size, lora_name, cache_salt, is_eagle=bool(worker.is_eagle)
            )
    return None


def _bytes_of(tokens: Tokens) -> bytes:
    """As little-endian uint32.  Raises ValueError."""
    numbers = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    try:
        return struct.pack(f"<{len(numbers)}I", *numbers)
    except struct.error as error:
        raise ValueError(f"tokens are integers from 0 to {2**32 - 1}: {error}") from None
