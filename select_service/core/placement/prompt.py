"""Prompt of a request in any of its forms, read into checked hash arrays and a length."""

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from indexer.hashing.block_hashing import Hashes, compute_block_hashes, compute_sequence_hashes
from indexer.hashing.engine_names import iterate_names
from indexer.hashing.seeds import prompt_seed
from indexer.index.prefix_index import PrefixIndex, PromptUnits
from select_service.base.errors import BadRequest, InvalidBody
from select_service.core.identity import PartitionKey
from select_service.core.load.new_reservation import PromptEnd
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.schemas.common import resolve_tenant
from select_service.schemas.prompts import BlockMmInfo, PromptFields

ISL_TOKENS_MAX = 2**40
"""Longest accepted prompt, in tokens; keeps sums of prefill tokens far from the int64 limit."""

LONG_PROMPT_LENGTH = 65_536
"""Number of tokens, or of hashes in a list, above which a thread reads the prompt in advance."""
LONG_MM_INFOS = 1024
"""Number of blocks in an image list above which a thread reads the prompt in advance, too."""
LOOKED_UP_BLOCKS_MAX = 262_144
"""Number of leading prompt blocks looked up in the index; more would take many milliseconds."""
NAMED_UNITS_MAX = 2048
"""Number of units of a prompt to compute engine names for, about 2 microseconds each."""
NUMBERS_PER_STEP = 16_384
"""List items converted to an array in a step, about half a millisecond."""

PROMPT_MISSING = (
    "a prompt is missing: give token_ids, or block_hashes with sequence_hashes and isl_tokens"
)
BOOKED_PROMPT_MISSING = "a prompt is missing: give token_ids, or sequence_hashes with isl_tokens"

N = TypeVar("N", np.uint32, np.int64)
PromptOwner = TypeVar("PromptOwner", bound=PromptFields)

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class Prompt(NamedTuple):
    block_hashes: Hashes
    """uint64[<= n_blocks]: content hash of each complete block that is looked up in the index."""
    sequence_hashes: Hashes
    """uint64[n_blocks]: identity of each block in its sequence, for load accounting."""
    isl_tokens: int
    units: PromptUnits | None = None
    """Units of the prompt, for ranks with several cache groups; None elsewhere."""
    booked_blocks: Hashes | None = None
    """uint64[n_blocks]: block hashes that a caller gives with a rank of its own, which are not
    looked up; None elsewhere.
    """
    end: PromptEnd | None = None
    """End behind the last whole block; None if the prompt is read from a request, see `end_of`."""
    shared: SharedHits | None = None
    """Tokens in the shared cache of the model; None without one."""

    @property
    def assumable_blocks(self) -> Hashes:
        """Return the block hashes that a rank holds after the prompt, uint64[<= n_blocks]."""
        return self.block_hashes if self.booked_blocks is None else self.booked_blocks


class ReadAheadPrompt(NamedTuple):
    """Prompt read in advance, for ranks with blocks of this size and content.

    lookahead: tokens behind a block that its content covers
    """

    block_size: int
    lookahead: int
    prompt: Prompt


PromptReader: TypeAlias = Callable[[PromptFields, int, int], Prompt]


def lookahead_of(body: PromptFields, lookahead: int) -> int:
    """Return the tokens behind a block that its content covers; a request may tell if any do."""
    if body.is_eagle is None:
        return lookahead
    return max(1, lookahead) if body.is_eagle else 0


def end_of(body: PromptFields, block_size: int, lookahead: int) -> PromptEnd | None:
    """Return the end of a prompt of tokens; None if an answer cannot continue it.

    Hashes of EAGLE and of images need more than the last tokens.
    """
    has_images = body.mm_routing_info is not None or body.block_mm_infos
    if body.token_ids is None or lookahead_of(body, lookahead) or has_images:
        return None
    tokens = body.token_ids[len(body.token_ids) // block_size * block_size :]
    return PromptEnd(prompt_seed(body.lora_name, body.cache_salt), _convert_list(tokens, np.uint32))


def has_tokens(body: PromptFields) -> bool:
    """Return whether a prompt is given as tokens, which precede hashes."""
    images = body.mm_routing_info
    return body.token_ids is not None or bool(images is not None and images.routing_token_ids)


def is_long_prompt(body: PromptFields) -> bool:
    """Return whether reading the prompt takes more than a few milliseconds."""
    if body.token_ids is not None and len(body.token_ids) > LONG_PROMPT_LENGTH:
        return True
    if body.sequence_hashes is not None and len(body.sequence_hashes) > LONG_PROMPT_LENGTH:
        return True
    if body.block_hashes is not None and len(body.block_hashes) > LONG_PROMPT_LENGTH:
        return True
    if body.block_mm_infos is not None and len(body.block_mm_infos) > LONG_MM_INFOS:
        return True
    images = body.mm_routing_info
    if images is None:
        return False
    infos = images.block_mm_infos
    return len(images.routing_token_ids) > LONG_PROMPT_LENGTH or (
        infos is not None and len(infos) > LONG_MM_INFOS
    )


def estimate_blocks(body: PromptFields, block_size: int) -> int:
    """Return the number of blocks of an unread prompt, or slightly more."""
    images, tokens = body.mm_routing_info, body.token_ids
    if images is not None and images.routing_token_ids:
        tokens = images.routing_token_ids
    if tokens is not None:
        return len(tokens) // block_size
    return len(body.sequence_hashes or ())


def read_prompt(body: PromptFields, block_size: int, lookahead: int) -> Prompt:
    """Read the prompt of a request that uses the index, in short steps of the interpreter.

    Precedence: `mm_routing_info` with tokens, then `token_ids`, then hashes.
    Raises BadRequest without a complete form, InvalidBody for a number that does not fit.
    """
    prompt = _read_token_prompt(body, block_size, lookahead)
    if prompt is not None:
        _check_unused_hashes(block_hashes=body.block_hashes, sequence_hashes=body.sequence_hashes)
        return prompt
    if body.block_hashes is None:
        if body.sequence_hashes is None and body.isl_tokens is None:
            raise BadRequest(PROMPT_MISSING)
        raise BadRequest("block_hashes is required without token_ids")
    prompt = _read_sequence_prompt(body)
    if prompt.isl_tokens == 0:
        raise BadRequest("isl_tokens must be greater than 0")
    blocks = _hash_array("block_hashes", body.block_hashes)
    if len(blocks) != len(prompt.sequence_hashes):
        raise BadRequest(
            f"block_hashes length {len(blocks)} must match "
            f"sequence_hashes length {len(prompt.sequence_hashes)}"
        )
    return prompt._replace(block_hashes=blocks[:LOOKED_UP_BLOCKS_MAX])


def read_booked_prompt(body: PromptFields, block_size: int, lookahead: int) -> Prompt:
    """Read the prompt of a reservation on a given rank.

    Block hashes of the caller are not looked up, and count only as assumed blocks.
    """
    blocks = _hash_array("block_hashes", body.block_hashes or [])
    prompt = _read_token_prompt(body, block_size, lookahead)
    if prompt is None:
        if body.sequence_hashes is None and body.isl_tokens is None:
            raise BadRequest(BOOKED_PROMPT_MISSING)
        prompt = _read_sequence_prompt(body)
        fits = len(blocks) == len(prompt.sequence_hashes)
        return prompt._replace(booked_blocks=blocks[:LOOKED_UP_BLOCKS_MAX]) if fits else prompt
    _check_unused_hashes(sequence_hashes=body.sequence_hashes)
    return prompt


def _read_sequence_prompt(body: PromptFields) -> Prompt:
    if body.sequence_hashes is None:
        raise BadRequest("sequence_hashes is required without token_ids")
    if body.isl_tokens is None:
        raise BadRequest("isl_tokens is required without token_ids")
    if body.isl_tokens > ISL_TOKENS_MAX:
        raise BadRequest(f"isl_tokens must not exceed {ISL_TOKENS_MAX}, got {body.isl_tokens}")
    sequence = _hash_array("sequence_hashes", body.sequence_hashes)
    return Prompt(_NO_HASHES, sequence, body.isl_tokens)


def _read_token_prompt(body: PromptFields, block_size: int, lookahead: int) -> Prompt | None:
    tokens, mm_infos = body.token_ids, body.block_mm_infos
    if body.mm_routing_info is not None and body.mm_routing_info.routing_token_ids:
        tokens = body.mm_routing_info.routing_token_ids
        mm_infos = body.mm_routing_info.block_mm_infos
    if tokens is None:
        return None
    blocks = compute_block_hashes(
        _convert_list(tokens, np.uint32),
        block_size,
        lora_name=body.lora_name,
        lookahead=lookahead_of(body, lookahead),
        mm_hashes=_mm_hashes(mm_infos, len(tokens) // block_size),
        cache_salt=body.cache_salt,
    )
    return Prompt(blocks[:LOOKED_UP_BLOCKS_MAX], compute_sequence_hashes(blocks), len(tokens))


def _convert_list(numbers: list[int], dtype: type[N]) -> npt.NDArray[N]:
    """Convert a list to an array.  Raises OverflowError."""
    if len(numbers) <= NUMBERS_PER_STEP:
        return _convert_short_list(numbers, dtype)
    found = np.empty(len(numbers), dtype)
    for at in range(0, len(numbers), NUMBERS_PER_STEP):
        part = slice(at, at + NUMBERS_PER_STEP)
        found[part] = _convert_short_list(numbers[part], dtype)
    return found


def _convert_short_list(numbers: list[int], dtype: type[N]) -> npt.NDArray[N]:
    if dtype is np.uint32:  # an `array` takes a third of the time, but longer for wide numbers
        return np.asarray(array("I", numbers))
    return np.array(numbers, dtype)


def _mm_hashes(
    infos: list[BlockMmInfo | None] | None, n_blocks: int
) -> Sequence[Sequence[int]] | None:
    """Return the image hashes of the first `n_blocks` blocks.  None means no images."""
    if not infos or not any(infos):
        return None
    return [
        [] if info is None else [mm.mm_hash for mm in info.mm_objects] for info in infos[:n_blocks]
    ]


def _check_unused_hashes(**hash_lists: list[int] | None) -> None:
    """Check hash lists that another form of the prompt makes superfluous against the schema."""
    for field, hashes in hash_lists.items():
        if hashes:
            _hash_array(field, hashes)


def _hash_array(field: str, hashes: list[int]) -> Hashes:
    """Return uint64[n] from signed or unsigned 64-bit integers.  Raises InvalidBody for wider
    integers.
    """
    try:
        return _convert_list(hashes, np.int64).view(np.uint64)
    except OverflowError:
        pass  # some hash is above the signed range: the slower way below
    for position, value in enumerate(hashes):
        if not -(2**63) <= value < 2**64:
            raise InvalidBody(f"{field}[{position}]: {value} does not fit in 64 bits")
    # Clients may send signed and unsigned forms of the same hash.
    return np.array([value % 2**64 for value in hashes], np.uint64)


def add_units(
    prompt: Prompt, body: PromptFields, index: PrefixIndex, hashing: tuple[int, int]
) -> Prompt:
    """Return the prompt with what the ranks of an index with several cache groups need.

    hashing: block size, and tokens behind a block that its content covers.  At most
    NAMED_UNITS_MAX names are computed: a longer prompt has none, and its match is a bound.
    """
    tokens = body.token_ids
    if body.mm_routing_info is not None and body.mm_routing_info.routing_token_ids:
        tokens = None  # images are not in the names
    if tokens is None:
        return prompt._replace(units=PromptUnits(prompt.isl_tokens))
    ids, (size, lookahead) = _convert_list(tokens, np.uint32), hashing
    per_block, scheme = index.units_per_block, index.name_scheme
    hashes = names = None
    if per_block > 1:
        hashes = compute_block_hashes(
            ids,
            size // per_block,
            lora_name=body.lora_name,
            lookahead=lookahead_of(body, lookahead),
        )
    # The names of an adapter's prompts cover its path, which neither events nor requests have.
    if scheme is not None and not body.lora_name and len(ids) // scheme.unit <= NAMED_UNITS_MAX:
        found = iterate_names(scheme, tokens, cache_salt=body.cache_salt)
        names = np.fromiter(found, np.uint64)
    return prompt._replace(units=PromptUnits(len(ids), ids, hashes, names))


def partition_key_of(query: PromptFields) -> PartitionKey:
    """Return the partition of a request.  Raises BadRequest for contradicting tenant names."""
    return PartitionKey(query.model_name, resolve_tenant(query.tenant_id, query.routing_group))


def drop_prompt(request: PromptOwner) -> PromptOwner:
    """Drop the token lists of a request that waits or lives on; the prompt has been hashed."""
    request.token_ids = request.mm_routing_info = request.block_mm_infos = None
    request.block_hashes = request.sequence_hashes = None
    return request
