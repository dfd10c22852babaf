"""Identity of stored blocks that an event leaves out: the identity of the sequence continues.

An engine sends a salt with the first block of a sequence only.  Events of lower tiers may leave
the fields for keys empty (vLLM's OffloadingConnector, MooncakeStoreConnector), although the blocks
have keys.
"""

from indexer.events.event_types import BlockStored, lookahead_of
from indexer.hashing.block_hashing import Hashes, Tokens, hash_blocks
from indexer.hashing.seeds import SEED, U64_MASK, lora_offset, salt_offset
from indexer.index.keyed_roots import SeedParts
from indexer.index.slot_keys import SlotKeys


def inherited_salt(keys: SlotKeys, event: BlockStored) -> int:
    """Return the part of the seed that the blocks of an event continue."""
    if event.parent is None or event.cache_salt is not None or not keys.roots.has_salts:
        return 0
    # Below an unknown parent the salt is unknown, too.  Without the salt no prompt finds these
    # blocks, since every path there passes the salted first block.
    parts = keys.find_parts(event.parent)
    return 0 if parts is None else parts.salt


def hash_continuation(
    keys: SlotKeys, event: BlockStored, tokens: Tokens, block_size: int, is_eagle: bool
) -> Hashes:
    """Return block hashes of `tokens`, which an event shows below the parent."""
    own = event.cache_salt
    salt = inherited_salt(keys, event) if own is None else salt_offset(own)
    seed = (SEED + lora_offset(event.lora_name) + salt) & U64_MASK
    return hash_blocks(tokens, block_size + lookahead_of(event, is_eagle), block_size, seed)


def inherited_parts(keys: SlotKeys, event: BlockStored, parent: int | None) -> int | None:
    """Return the part of the seed for blocks of a lower tier with names that the slot lacks.

    parent: name above the first of these blocks.  Returns None if the identity cannot be known.
    """
    parts = None if parent is None else keys.find_parts(parent)
    if parts is None:
        return 0 if event.has_keys or not event.has_key_fields else None
    if event.has_keys:
        return parts.salt + (parts.adapter if event.lora_name is None else 0)
    is_hidden = event.has_key_fields and keys.roots.has_images
    return None if is_hidden else parts.salt + parts.adapter


def record_keys(keys: SlotKeys, event: BlockStored, first_hash: int) -> bool:
    """Record the keys of an event; return False if there is no room for the salt.

    first_hash: content hash of the first block of the event
    """
    roots = keys.roots
    roots.has_keys = True
    roots.has_images = roots.has_images or event.mm_hashes is not None
    parts = SeedParts(salt_offset(event.cache_salt), lora_offset(event.lora_name))
    if event.parent is not None or parts == (0, 0):
        return True
    return keys.add_root(first_hash, parts) or not parts.salt
