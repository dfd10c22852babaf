"""File of shared caches: where prompts of a model are looked up, by model."""

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from select_service.config.per_model_file import read_by_model
from select_service.config.settings_loader import ConfigError
from select_service.core.shared_caches.page_keys import KeyLayout
from select_service.net.egress_policy import EgressPolicy
from select_service.net.urls import service_url_error
from select_service.schemas.shared_caches import CacheKind

PAGE_BYTES_MAX = 7680
"""Maximum length of the keys of a page, which are looked up in one request."""
_Ranks: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
_Link: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e6)]

FIELD_ADVICE = {
    "page_size": "remove it, pages have the block_size of the workers",
    "is_mla_model": "use mla",
    "should_split_heads": "give tp_lcm_size",
    "extra_backend_tag": "use tag",
}
"""Advice for fields that have another name here than in the engine or in Dynamo."""


class MooncakeEntry(
    msgspec.Struct, forbid_unknown_fields=True, tag="mooncake", tag_field="type", kw_only=True
):
    """Mooncake store.  The tp, pp and head fields are those of the engines."""

    kind: ClassVar[CacheKind] = "mooncake"
    url: str
    keys: str
    tp_size: _Ranks = 1
    tp_lcm_size: _Ranks | None = None
    pp_size: _Ranks = 1
    mla: bool = False
    tag: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{0,64}$")] = ""
    link_gbps: _Link | None = None

    def key_layout(self) -> KeyLayout:
        """Return the parts in which a page is stored."""
        return KeyLayout(self.tag, self.tp_lcm_size or self.tp_size, self.pp_size, self.mla)


class LMCacheEntry(
    msgspec.Struct, forbid_unknown_fields=True, tag="lmcache", tag_field="type", kw_only=True
):
    """LMCache, by its controller."""

    kind: ClassVar[CacheKind] = "lmcache"
    url: str
    sharing: Literal["p2p", "remote"]
    link_gbps: _Link | None = None


SharedCacheEntry: TypeAlias = MooncakeEntry | LMCacheEntry


def read_shared_caches(path: str, destinations: EgressPolicy) -> dict[str, SharedCacheEntry]:
    """Return the entries by model.  Raises ConfigError."""
    found = read_by_model("shared cache file", path, SharedCacheEntry, FIELD_ADVICE)
    for name, entry in found.items():
        fault = service_url_error(entry.url)
        fault = f"url: {fault}" if fault is not None else _fault_of(entry)
        refusal = destinations.url_refusal(entry.url) if fault is None else None
        if refusal is not None:
            fault = f"url: {entry.url} is refused: {refusal}"
        if fault is not None:
            raise ConfigError(f"shared cache file {path}: model `{name}`: {fault}")
    return found


def _fault_of(entry: SharedCacheEntry) -> str | None:
    """Return why look-ups could never find anything, or None."""
    if not isinstance(entry, MooncakeEntry):
        return None
    if entry.keys != "sglang":
        return (
            f"keys: `{entry.keys[:40]}` is unknown: only `sglang` (HiCache) names pages by their "
            "tokens; connectors of vLLM use hashes with a seed of the engine, and LMCache has "
            "`type: lmcache`"
        )
    lcm, tp = entry.tp_lcm_size, entry.tp_size
    if lcm is not None and lcm % tp:
        return f"tp_lcm_size: {lcm} is not a multiple of tp_size, which is {tp}"
    if (length := entry.key_layout().page_bytes()) > PAGE_BYTES_MAX:
        return (
            f"the keys of a page have {length} characters (limit {PAGE_BYTES_MAX}): too many parts "
            "by tp_size, tp_lcm_size and pp_size, or too long a tag"
        )
    return None
