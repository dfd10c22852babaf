"""Identity of announced blocks besides their tokens: adapter, salt, images and other keys.

An engine reuses a block only for requests with the same keys, so an unknown key must never look
like plain text of the base model.  Every key is therefore of one of these kinds:

* harmless (`HARMLESS_FIELDS`, nil, the adapter's own name, and, counted, unknown fields without any
of `IDENTITY_WORDS` in the name);
* understood: the adapter, the salt or a multimodal hash that a prompt can have as well;
* anything else: the hash of the key becomes a multimodal hash that no prompt has, so the block, and
with the block everything below, matches nothing else.

vLLM's `extra_keys` of a block are, in this order, the adapter's name, an [identifier, offset] per
image or sound (before 0.12 the bare identifier), in the first block of a sequence the salt, and the
SHA-256 of prompt embeddings as bytes.  A bare text in the first block of a sequence can therefore
be a salt or an image.  The last such text is the salt, unless the second block repeats it; either
reading keeps the blocks apart from unsalted text and from other salts.

Source: the engines named in `payload_parser`.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from indexer.events.chunked_decoding import PART_ELEMENTS
from indexer.hashing.seeds import (
    NAMESPACE_SALT_PREFIX,
    U64_MASK,
    image_hash,
    key_hash,
    sha256_hex_prefix,
    strip_salt_prefix,
)

KEYS_COST = 4
"""Cost of reading the extra keys of a block, in blocks."""
READ_FIELDS = frozenset(
    {
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "layer_group_id",
        "window_size",
        "locality",
        "lookahead_token_ids",
        "cache_salt",
        "block_mm_infos",
        "mm_keys",
    }
)
"""Fields of events with a meaning here."""
HARMLESS_FIELDS = frozenset({"ownership", "session_id", "source_kind", "event_id", "hash_algo"})
"""Fields that change neither the content of a block nor the requests that may reuse the block."""

IDENTITY_WORDS = re.compile(
    "lora|adapter|salt|tenant|namespace|isolat|identit|multimodal|modality|image|audio|video|embed"
    "|steer|(^|_)(mm|keys?|user)(_|$)",
    re.IGNORECASE,
)
"""Words in the name of an unknown field that may decide which requests can reuse a block."""

_EMPTY: tuple[object, ...] = (None, False, 0, "", b"", [], {})


class BadIdentity(Exception):
    """Error for identity fields of a wrong type; the text gives the reason."""


class BlockIdentity(NamedTuple):
    """Identity of the blocks of an event.

    lora_name:  adapter; None for the base model
    cache_salt: salt in the event itself; None means that blocks continue the salt of their parent
    mm_hashes:  per block the u64 hashes of images and of keys that are not understood; None when no
                block has any
    """

    lora_name: str | None
    cache_salt: str | None
    mm_hashes: list[list[int]] | None


def list_unknown_fields(fields: Mapping[Any, object]) -> list[str]:
    """Return the names of fields that are neither read nor known to be harmless."""
    names = fields.keys() - READ_FIELDS - HARMLESS_FIELDS
    return [str(name) for name in names] if names else []


def read_identity(
    fields: Mapping[Any, object], n_blocks: int, *, begins: bool
) -> Generator[int, None, BlockIdentity]:
    """Read the identity of a stored event's blocks; yield the cost of steps.  Raises BadIdentity.

    begins: the event begins a sequence
    """
    lora_name = _read_adapter(fields)
    keys = yield from _BlockKeys(lora_name, n_blocks).read_in_steps(fields.get("extra_keys"))
    salt = _read_text(fields, "cache_salt") or keys.marked_salt
    if begins:
        salt = keys.take_bare_salt(salt)
    mm_hashes = keys.mm_hashes()
    infos = fields.get("block_mm_infos")
    if infos is not None:
        images = yield from _read_per_block(infos, "block_mm_infos", n_blocks, _mm_objects)
        # Explicit hashes replace the identifiers of the same images among the keys.
        mm_hashes = [
            mine + keys.opaque[i] if mine else mm_hashes[i] for i, mine in enumerate(images)
        ]
    trt_keys = fields.get("mm_keys")
    if trt_keys is not None:
        found = yield from _read_per_block(trt_keys, "mm_keys", n_blocks, _trt_keys)
        mm_hashes = [a + b for a, b in zip(mm_hashes, found, strict=True)]
    if n_blocks:
        # A key of the first block separates all other blocks, which are below.
        mm_hashes[0] = mm_hashes[0] + keys.surplus + _unknown_hashes(fields)
    return BlockIdentity(
        lora_name, strip_salt_prefix(salt) if salt else None, mm_hashes if any(mm_hashes) else None
    )


def _read_adapter(fields: Mapping[Any, object]) -> str | None:
    """Return the adapter's name.  A number without a name is the adapter `lora_id:<number>`."""
    name = _read_text(fields, "lora_name")
    if name:
        return name
    number = fields.get("lora_id")
    # Publishers without adapters send 0.
    if number is None or number is False or number == 0 or number == "":
        return None
    if type(number) is int or isinstance(number, str):
        return f"lora_id:{number}"
    return f"lora_id:{key_hash(_encode(number)):016x}"


def _read_text(fields: Mapping[Any, object], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadIdentity(f"{name} is {shorten(value)}, expected a string")
    return value or None


class _BlockKeys:
    """Extra keys of an event's blocks.

    opaque:  per block the hashes of keys that are not understood
    surplus: hashes of keys beyond the last block
    """

    def __init__(self, lora_name: str | None, n_blocks: int) -> None:
        self._lora_name = lora_name
        self._texts: list[list[str]] = [[] for _ in range(n_blocks)]
        self._images: list[list[int]] = [[] for _ in range(n_blocks)]
        self.opaque: list[list[int]] = [[] for _ in range(n_blocks)]
        self.surplus: list[int] = []
        self.marked_salt: str | None = None

    def read_in_steps(self, value: object) -> Generator[int, None, "_BlockKeys"]:
        """Sort the keys of the field `extra_keys`."""
        if value is None:
            return self
        if not isinstance(value, list):
            raise BadIdentity(f"extra_keys is {shorten(value)}, expected an array")
        n_blocks = len(self._texts)
        for cost, part in split_parts(n_blocks):
            if cost:
                yield KEYS_COST * cost
            for block, keys in enumerate(value[part], part.start):
                self._add_block(block, keys)
        self.surplus = [key_hash(_encode(keys)) for keys in value[n_blocks:] if keys]
        return self

    def _add_block(self, block: int, keys: object) -> None:
        if keys is None:
            return
        if not isinstance(keys, list):
            raise BadIdentity(f"extra_keys holds {shorten(keys)}, expected an array or nil")
        is_adapter_due = self._lora_name is not None
        for key in keys:
            if key is None:
                continue
            if is_adapter_due and key == self._lora_name:
                is_adapter_due = False
            elif isinstance(key, str) and key:
                if key.startswith(NAMESPACE_SALT_PREFIX):
                    self.marked_salt = key
                else:
                    self._texts[block].append(key)
            elif _is_pair(key):
                self._images[block].append(self._image_hash(key[0]))
            else:
                self.opaque[block].append(key_hash(_encode(key)))

    def take_bare_salt(self, salt: str | None) -> str | None:
        """Take the text that is the salt out of the keys of the first block; return the salt.

        salt: the salt according to other fields, which may be repeated here
        """
        texts = self._texts[0] if self._texts else []
        if salt is not None:
            if salt in texts:
                texts.remove(salt)
            return salt
        is_repeated = len(self._texts) > 1 and bool(texts) and texts[-1] in self._texts[1]
        if not texts or is_repeated or self._adapted_digits(texts[-1]) is not None:
            return None
        return texts.pop()

    def mm_hashes(self) -> list[list[int]]:
        """Return the hashes per block."""
        columns = zip(self._texts, self._images, self.opaque, strict=True)
        return [
            [*map(self._image_hash, texts), *images, *opaque] for texts, images, opaque in columns
        ]

    def _image_hash(self, identifier: str) -> int:
        return image_hash(self._adapted_digits(identifier) or identifier)

    def _adapted_digits(self, identifier: str) -> str | None:
        """Return the SHA-256 of an identifier `<adapter>:<SHA-256>`; None for any other form.

        vLLM adds the name when the adapter changes the encoder; the seed has the adapter already.
        """
        prefix, _, digits = identifier.rpartition(":")
        is_adapted = bool(prefix) and prefix == self._lora_name
        return digits if is_adapted and sha256_hex_prefix(digits) is not None else None


def _is_pair(key: object) -> bool:
    return (
        isinstance(key, list)
        and len(key) == 2
        and isinstance(key[0], str)
        and key[0] != ""
        and type(key[1]) is int
    )


def _read_per_block(
    value: object, name: str, n_blocks: int, read: Any
) -> Generator[int, None, list[list[int]]]:
    """Read a field with an item per block, or nil; the first block gets surplus items as well."""
    if not isinstance(value, list):
        raise BadIdentity(f"{name} is {shorten(value)}, expected an array")
    found: list[list[int]] = []
    for cost, part in split_parts(n_blocks):
        if cost:
            yield KEYS_COST * cost
        found += [[] if item is None else read(item) for item in value[part]]
    found += [[] for _ in range(n_blocks - len(found))]
    if n_blocks:
        found[0] += [key_hash(_encode(item)) for item in value[n_blocks:] if item]
    return found


def _mm_objects(info: object) -> list[int]:
    """Return the hashes in {"mm_objects": [{"mm_hash": u64, ...}, ...]}."""
    objects = info.get("mm_objects") if isinstance(info, dict) else None
    if not isinstance(objects, list):
        raise BadIdentity("block_mm_infos holds a value other than nil or mm_objects")
    found = []
    for item in objects:
        mm_hash = item.get("mm_hash") if isinstance(item, dict) else None
        if type(mm_hash) is not int:
            raise BadIdentity(f"mm_hash is {shorten(mm_hash)}, expected an integer")
        found.append(mm_hash & U64_MASK)
    return found


def _trt_keys(keys: object) -> list[int]:
    """Return the hashes in TensorRT-LLM's [{"type": "mm_key", "hash": hex or UUID, ...}, ...]."""
    return [_trt_hash(key) for key in (keys if isinstance(keys, list) else [keys])]


def _trt_hash(key: object) -> int:
    identifier = key.get("hash") if isinstance(key, dict) else None
    if isinstance(identifier, str) and identifier:
        return image_hash(identifier)
    return key_hash(_encode(key))


def _unknown_hashes(fields: Mapping[Any, object]) -> list[int]:
    """Return the hashes of unknown fields that may be keys and have a value."""
    names = list_unknown_fields(fields)
    values = {str(name): value for name, value in fields.items()} if names else {}
    return [
        key_hash(_encode([name, values[name]]))
        for name in names
        if values[name] not in _EMPTY and _may_be_key(name, values[name])
    ]


def _may_be_key(name: str, value: object) -> bool:
    if name.startswith("["):  # an element of an array, without a name
        return isinstance(value, str | bytes | dict)
    return IDENTITY_WORDS.search(name) is not None


def split_parts(n: int) -> Iterator[tuple[int, slice]]:
    """Yield (cost of the previous part, next part of n members), at least one."""
    for start in range(0, max(n, 1), PART_ELEMENTS):
        yield PART_ELEMENTS if start else 0, slice(start, min(start + PART_ELEMENTS, n))


def _encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


_EXT_ADDRESS = re.compile(r"<[\w.]*Ext object at 0x[0-9a-fA-F]+>")


def shorten(value: object) -> str:
    """Return a text short enough for a log line, for any value a publisher sent."""
    if isinstance(value, msgspec.msgpack.Ext):
        text = f"Ext({value.code}, {bytes(value.data)!r})"
    else:
        # Extension values inside others show a memory address.
        text = _EXT_ADDRESS.sub("Ext", repr(value))
    return text if len(text) <= 40 else f"{type(value).__name__} {text[:40]}..."
