"""Keys under which SGLang's HiCache stores the pages of a prompt in Mooncake.

A page has the tokens of a block.  Its name is a SHA-256 chain over the pages so far, and thus
identifies the whole prefix.  The keys add a suffix for each part that is stored apart.

Source: SGLang's mem_cache/hicache_storage.py and storage/mooncake_store/mooncake_store.py,
https://github.com/sgl-project/sglang, and Dynamo's kv_router/shared_cache/hicache.rs.
"""

import hashlib
from typing import NamedTuple

import numpy as np

PAGES_MAX = 1024
"""Maximum number of pages of a prompt that are looked up; a millisecond of hashing."""


KEY_NAME_CHARS = 64
"""Length of the name of a page in its keys."""


class KeyLayout(NamedTuple):
    """Parts in which SGLang stores a page.

    tag: `extra_backend_tag` of the engines; empty without one
    heads: parts by which the heads are divided: tensor-parallel ranks, or their common multiple
    stages: pipeline-parallel ranks
    has_mla: whether the model has multi-head latent attention, with one part for all heads
    """

    tag: str = ""
    heads: int = 1
    stages: int = 1
    has_mla: bool = False

    def suffixes(self) -> list[str]:
        """Return the ends of the keys of a page."""
        stages = [f"{stage}" for stage in range(self.stages)] if self.stages > 1 else [""]
        if self.has_mla:
            return [f"_{stage}_k" for stage in stages]
        ends = [
            f"{head}_{stage}" if stage else f"{head}"
            for stage in stages
            for head in range(self.heads)
        ]
        return [f"_{end}_{kind}" for end in ends for kind in ("k", "v")]

    def page_bytes(self) -> int:
        """Return the length of the keys of a page in a list."""
        return sum(len(self.prefix()) + KEY_NAME_CHARS + len(end) + 1 for end in self.suffixes())

    def prefix(self) -> str:
        """Return the beginning of every key."""
        return f"{self.tag}_" if self.tag else ""


def hash_pages(tokens: list[int], page_size: int, is_eagle: bool) -> list[bytes]:
    """Return the names of the complete leading pages, at most PAGES_MAX.

    is_eagle: whether engines count pairs of neighbouring tokens instead of tokens
    """
    # One more than the pages have: the last pair of an EAGLE page needs its successor.
    n_tokens = min(len(tokens), PAGES_MAX * page_size + 1)
    ids = np.array(tokens[:n_tokens], "<u4")
    units = np.stack([ids[:-1], ids[1:]], axis=1) if is_eagle else ids[:, np.newaxis]
    n_pages = min(len(units) // page_size, PAGES_MAX)
    step, data = page_size * units.shape[1] * 4, memoryview(units.tobytes())
    names, last = list[bytes](), b""
    for page in range(n_pages):
        hasher = hashlib.sha256(last)
        hasher.update(data[page * step : (page + 1) * step])
        names.append(last := hasher.digest())
    return names
