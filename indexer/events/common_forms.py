"""Forms of events that a stream usually sends, which compiled code can apply.

`batch_applier` decides which tier an event is about, and whether it is prefix cache; this module
stores the decisions for events of a form.
"""

import numpy as np

from indexer.events import common_form_kernels as layout
from indexer.events import payload_layout
from indexer.events.event_types import BlockRemoved, BlockStored
from indexer.events.msgpack_kernels import NONE, U32_MAX
from indexer.hashing.seeds import SEED
from indexer.index.block_tree import holder_of
from indexer.tiers import Tier


class CommonForms:
    """Table of usual forms; `common_form_kernels` reads `array`."""

    def __init__(self, dp_rank: int, block_size: int, is_eagle: bool) -> None:
        self.array = np.zeros(layout.COMMON_FORMS_LENGTH, np.int64)
        self.array[layout.RANK] = dp_rank
        self.array[layout.SIZE] = block_size
        self.array[layout.IS_EAGLE] = is_eagle
        self.array[layout.SEED] = SEED
        self.slot: int | None = None
        """Slot of the stream of the stored forms; None without any form."""
        self._forms: set[tuple[type, str | None, str | None, int | None]] = set()

    def learn_form(
        self, event: BlockStored | BlockRemoved, slot: int, tier: Tier, *, counted: bool
    ) -> None:
        """Store the tier of events of this form, from the stream's own rank.

        counted: of a store; equal for every store since the last `forget_forms`.
        """
        form = (type(event), event.medium, event.kind, event.group_idx)
        if form in self._forms and slot == self.slot:
            return
        texts = [(text or "").encode() for text in (event.medium, event.kind)]
        group = NONE if event.group_idx is None else event.group_idx
        if max(map(len, texts)) > layout.TEXT_MAX or not NONE <= group <= U32_MAX:
            return
        if slot != self.slot or len(self._forms) == layout.FORMS_MAX:
            self.forget_forms()
        is_store = isinstance(event, BlockStored)
        at = layout.FORMS + len(self._forms) * layout.FORM_LENGTH
        self.array[at + layout.F_TAG] = (
            payload_layout.STORED if is_store else payload_layout.REMOVED
        )
        self.array[at + layout.F_HOLDER] = holder_of(slot, tier, counted=counted or not is_store)
        self.array[at + layout.F_GROUP] = group
        self._write_text(at + layout.F_MEDIUM_LEN, at + layout.F_MEDIUM, event.medium, texts[0])
        self._write_text(at + layout.F_KIND_LEN, at + layout.F_KIND, event.kind, texts[1])
        self._forms.add(form)
        self.slot = slot
        self.array[layout.N_FORMS] = len(self._forms)

    def set_topic(self, topic: bytes) -> None:
        """Record the topic of the stream's messages; none is usual if the topic is too long."""
        is_short = len(topic) <= layout.TOPIC_MAX
        self.array[layout.TOPIC_LEN] = len(topic) if is_short else layout.NO_TOPIC
        if is_short:
            first = layout.TOPIC
            self.array[first : first + len(topic)] = np.frombuffer(topic, np.uint8)

    def set_keys(self, *, has_salts: bool, has_keys: bool) -> None:
        """Record whether events of the index may continue the keys of other events."""
        flags = layout.HAS_SALTS * has_salts | layout.HAS_KEYS * has_keys
        self.array[layout.KEYS] = flags

    def forget_forms(self) -> None:
        """Remove all forms, because decisions about forms may change."""
        self._forms.clear()
        self.slot = None
        self.array[layout.N_FORMS] = 0

    def _write_text(self, length: int, first: int, text: str | None, encoded: bytes) -> None:
        self.array[length] = NONE if text is None else len(encoded)
        self.array[first : first + len(encoded)] = np.frombuffer(encoded, np.uint8)
