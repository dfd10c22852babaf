"""A request's prompt, whatever form it came in: checked hash arrays and a length."""

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from indexer.hashing.hashes import Hashes, block_hashes, sequence_hashes
from select_service.bodies.common import tenant_of
from select_service.bodies.prompts import BlockMmInfo, PromptFields
from select_service.core.identity import PartitionKey
from select_service.errors import BadRequest, InvalidBody

ISL_TOKENS_MAX = 2**40
"""Longest prompt that is believed; keeps sums of prefill tokens far from the end of an int64."""

LONG_PROMPT = 65_536
"""Tokens, or hashes of one list, beyond which a prompt is read ahead, on a thread."""
LONG_MM_INFOS = 1024
"""Blocks with or without images in a list, beyond which it is read ahead, too."""
LOOKED_UP_BLOCKS_MAX = 262_144
"""Blocks of a prompt that are looked up in the index, its first ones; some milliseconds of work."""
NUMBERS_AT_ONCE = 16_384
"""Of a list, made part of an array in one step of half a millisecond."""

PROMPT_MISSING = (
    "a prompt is missing: give token_ids, or block_hashes with sequence_hashes and isl_tokens"
)
BOOKED_PROMPT_MISSING = "a prompt is missing: give token_ids, or sequence_hashes with isl_tokens"

N = TypeVar("N", np.uint32, np.int64)

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class Prompt(NamedTuple):
    block_hashes: Hashes
    """uint64[<= n_blocks]: content of each complete block that is looked up in the index."""
    sequence_hashes: Hashes
    """uint64[n_blocks]: identity of each block in its sequence, for load accounting."""
    isl_tokens: int


class PromptRead(NamedTuple):
    """A prompt that was read ahead, as ranks with such blocks have it."""

    block_size: int
    is_eagle: bool
    prompt: Prompt


ReadPrompt: TypeAlias = Callable[[PromptFields, int, bool], Prompt]


def is_long(body: PromptFields) -> bool:
    """Does it take more than a few milliseconds to read the prompt?"""
    if body.token_ids is not None and len(body.token_ids) > LONG_PROMPT:
        return True
    if body.sequence_hashes is not None and len(body.sequence_hashes) > LONG_PROMPT:
        return True
    if body.block_hashes is not None and len(body.block_hashes) > LONG_PROMPT:
        return True
    if body.block_mm_infos is not None and len(body.block_mm_infos) > LONG_MM_INFOS:
        return True
    images = body.mm_routing_info
    if images is None:
        return False
    infos = images.block_mm_infos
    return len(images.routing_token_ids) > LONG_PROMPT or (
        infos is not None and len(infos) > LONG_MM_INFOS
    )


def n_blocks_of(body: PromptFields, block_size: int) -> int:
    """Blocks of a prompt that has not been read, or a few more."""
    images, tokens = body.mm_routing_info, body.token_ids
    if images is not None and images.routing_token_ids:
        tokens = images.routing_token_ids
    if tokens is not None:
        return len(tokens) // block_size
    return len(body.sequence_hashes or ())


def prompt_of(body: PromptFields, block_size: int, is_eagle: bool) -> Prompt:
    """Read the prompt of a request that looks at the index, in short steps of the interpreter.

    Precedence: `mm_routing_info` with tokens, then `token_ids`, then hashes.
    Raises BadRequest when no form is complete, InvalidBody when a number does not fit.
    """
    prompt = _prompt_of_tokens(body, block_size, is_eagle)
    if prompt is not None:
        _check_unused(block_hashes=body.block_hashes, sequence_hashes=body.sequence_hashes)
        return prompt
    if body.block_hashes is None:
        if body.sequence_hashes is None and body.isl_tokens is None:
            raise BadRequest(PROMPT_MISSING)
        raise BadRequest("block_hashes is required without token_ids")
    prompt = _prompt_of_sequence(body)
    if prompt.isl_tokens == 0:
        raise BadRequest("isl_tokens must be greater than 0")
    blocks = _hash_array("block_hashes", body.block_hashes)
    if len(blocks) != len(prompt.sequence_hashes):
        raise BadRequest(
            f"block_hashes length {len(blocks)} must match "
            f"sequence_hashes length {len(prompt.sequence_hashes)}"
        )
    return prompt._replace(block_hashes=blocks[:LOOKED_UP_BLOCKS_MAX])


def booked_prompt_of(body: PromptFields, block_size: int, is_eagle: bool) -> Prompt:
    """Read the prompt of a reservation on a given rank: block hashes are not used."""
    _check_unused(block_hashes=body.block_hashes)
    prompt = _prompt_of_tokens(body, block_size, is_eagle)
    if prompt is None:
        if body.sequence_hashes is None and body.isl_tokens is None:
            raise BadRequest(BOOKED_PROMPT_MISSING)
        return _prompt_of_sequence(body)
    _check_unused(sequence_hashes=body.sequence_hashes)
    return prompt


def _prompt_of_sequence(body: PromptFields) -> Prompt:
    if body.sequence_hashes is None:
        raise BadRequest("sequence_hashes is required without token_ids")
    if body.isl_tokens is None:
        raise BadRequest("isl_tokens is required without token_ids")
    if body.isl_tokens > ISL_TOKENS_MAX:
        raise BadRequest(f"isl_tokens must not exceed {ISL_TOKENS_MAX}, got {body.isl_tokens}")
    sequence = _hash_array("sequence_hashes", body.sequence_hashes)
    return Prompt(_NO_HASHES, sequence, body.isl_tokens)


def _prompt_of_tokens(body: PromptFields, block_size: int, is_eagle: bool) -> Prompt | None:
    tokens, mm_infos = body.token_ids, body.block_mm_infos
    if body.mm_routing_info is not None and body.mm_routing_info.routing_token_ids:
        tokens = body.mm_routing_info.routing_token_ids
        mm_infos = body.mm_routing_info.block_mm_infos
    if tokens is None:
        return None
    blocks = block_hashes(
        _array_of(tokens, np.uint32),
        block_size,
        lora_name=body.lora_name,
        is_eagle=is_eagle if body.is_eagle is None else body.is_eagle,
        mm_hashes=_mm_hashes(mm_infos, len(tokens) // block_size),
        cache_salt=body.cache_salt,
    )
    return Prompt(blocks[:LOOKED_UP_BLOCKS_MAX], sequence_hashes(blocks), len(tokens))


def _array_of(numbers: list[int], dtype: type[N]) -> npt.NDArray[N]:
    """Raises OverflowError."""
    if len(numbers) <= NUMBERS_AT_ONCE:
        return _short_array_of(numbers, dtype)
    found = np.empty(len(numbers), dtype)
    for at in range(0, len(numbers), NUMBERS_AT_ONCE):
        part = slice(at, at + NUMBERS_AT_ONCE)
        found[part] = _short_array_of(numbers[part], dtype)
    return found


def _short_array_of(numbers: list[int], dtype: type[N]) -> npt.NDArray[N]:
    if dtype is np.uint32:  # an `array` takes a third of the time, but longer for wide numbers
        return np.asarray(array("I", numbers))
    return np.array(numbers, dtype)


def _mm_hashes(
    infos: list[BlockMmInfo | None] | None, n_blocks: int
) -> Sequence[Sequence[int]] | None:
    """n_blocks: those behind them are left out"""
    if not infos or not any(infos):
        return None
    return [
        [] if info is None else [mm.mm_hash for mm in info.mm_objects] for info in infos[:n_blocks]
    ]


def _check_unused(**hash_lists: list[int] | None) -> None:
    """What another form of the prompt makes superfluous must still be what the schema says."""
    for field, hashes in hash_lists.items():
        if hashes:
            _hash_array(field, hashes)


def _hash_array(field: str, hashes: list[int]) -> Hashes:
    """uint64[n] from signed or unsigned 64-bit integers.  Raises InvalidBody for wider ones."""
    try:
        return _array_of(hashes, np.int64).view(np.uint64)
    except OverflowError:
        pass  # at least one is above the signed range: the uncommon, slower way
    for position, value in enumerate(hashes):
        if not -(2**63) <= value < 2**64:
            raise InvalidBody(f"{field}[{position}]: {value} does not fit in 64 bits")
    return np.array([value % 2**64 for value in hashes], np.uint64)


def key_of(query: PromptFields) -> PartitionKey:
    """Whom it is for.  Raises BadRequest when its names of the tenant contradict each other."""
    return PartitionKey(query.model_name, tenant_of(query.tenant_id, query.routing_group))
