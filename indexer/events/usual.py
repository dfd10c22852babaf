"""What events of one stream usually look like, so that compiled code knows what they change.

Which tier an event is about, and whether it is prefix cache at all, is judged by `batch_applier`;
its verdict about events of one form is remembered here.
"""

import numpy as np

from indexer.events import kernels
from indexer.events import usual_kernels as layout
from indexer.events.event_types import BlockRemoved, BlockStored
from indexer.events.msgpack_kernels import NONE, U32_MAX
from indexer.hashing.seeds import SEED
from indexer.index.block_tree import holder_of
from indexer.tiers import Tier


class Usual:
    """`array` is what `usual_kernels` reads."""

    def __init__(self, dp_rank: int, block_size: int, is_eagle: bool) -> None:
        self.array = np.zeros(layout.USUAL_LENGTH, np.int64)
        self.array[layout.RANK] = dp_rank
        self.array[layout.SIZE] = block_size
        self.array[layout.IS_EAGLE] = is_eagle
        self.array[layout.SEED] = SEED
        self._slot: int | None = None
        self._forms: set[tuple[type, str | None, str | None, int | None]] = set()

    def knows(self, slot: int) -> bool:
        """Is anything known of the stream of this slot?"""
        return slot == self._slot

    def learn(
        self, event: BlockStored | BlockRemoved, slot: int, tier: Tier, *, counted: bool
    ) -> None:
        """Events of this form, of the stream's own rank, are about this tier.

        counted: of a store; so has every one since the last `forget` been.
        """
        form = (type(event), event.medium, event.kind, event.group_idx)
        if form in self._forms and slot == self._slot:
            return
        texts = [(text or "").encode() for text in (event.medium, event.kind)]
        group = NONE if event.group_idx is None else event.group_idx
        if max(map(len, texts)) > layout.TEXT_MAX or not NONE <= group <= U32_MAX:
            return
        if slot != self._slot or len(self._forms) == layout.FORMS_MAX:
            self.forget()
        is_store = isinstance(event, BlockStored)
        at = layout.FORMS + len(self._forms) * layout.FORM_LENGTH
        self.array[at + layout.F_TAG] = kernels.STORED if is_store else kernels.REMOVED
        self.array[at + layout.F_HOLDER] = holder_of(slot, tier, counted=counted or not is_store)
        self.array[at + layout.F_GROUP] = group
        self._write(at + layout.F_MEDIUM_LEN, at + layout.F_MEDIUM, event.medium, texts[0])
        self._write(at + layout.F_KIND_LEN, at + layout.F_KIND, event.kind, texts[1])
        self._forms.add(form)
        self._slot = slot
        self.array[layout.N_FORMS] = len(self._forms)

    def forget(self) -> None:
        """What was judged may be judged otherwise now."""
        self._forms.clear()
        self._slot = None
        self.array[layout.N_FORMS] = 0

    def _write(self, length: int, first: int, text: str | None, encoded: bytes) -> None:
        self.array[length] = NONE if text is None else len(encoded)
        self.array[first : first + len(encoded)] = np.frombuffer(encoded, np.uint8)
