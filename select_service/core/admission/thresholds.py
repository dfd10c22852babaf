"""From which load on a rank is busy: two thresholds per model, changed while the service runs.

    busy = active_decode_blocks / total_kv_blocks > active_decode_blocks_threshold
        or active_prefill_tokens > active_prefill_tokens_threshold

A worker is busy when all its ranks are.

Source: the request rejection document of Dynamo ("Busy Detection Logic").
"""

from collections.abc import Iterable, Set
from typing import NamedTuple

from msgspec import UNSET

from select_service.bodies.admission import BusyThresholdChange, BusyThresholdView
from select_service.errors import CapacityExceeded

MODELS_MAX = 1024
"""Models with thresholds of their own.  They stay when the last worker of a model leaves, since it
may come back."""


class BusyThresholds(NamedTuple):
    """decode_blocks: used part of the KV cache, 0 to 1;  None: not judged."""

    decode_blocks: float | None = None
    prefill_tokens: int | None = None

    def scaled(self, share: float) -> "BusyThresholds":
        """So much of each."""
        if share == 1.0 or self.off:
            return self
        blocks, tokens = self.decode_blocks, self.prefill_tokens
        return BusyThresholds(
            None if blocks is None else blocks * share,
            None if tokens is None else int(tokens * share),
        )

    @property
    def off(self) -> bool:
        return self.decode_blocks is None and self.prefill_tokens is None


class ThresholdTable:
    """The thresholds of every model: its own ones, else those of the process."""

    def __init__(self, default: BusyThresholds) -> None:
        self.default = default
        self._own: dict[str, BusyThresholds] = {}
        self.changes = 0

    @property
    def off(self) -> bool:
        """Is no model judged at all?"""
        return self.default.off and all(own.off for own in self._own.values())

    def of(self, model_name: str) -> BusyThresholds:
        return self._own.get(model_name, self.default)

    def change(self, change: BusyThresholdChange) -> BusyThresholdView:
        """Set what is given, clear what is null, keep the rest.  Raises CapacityExceeded."""
        model, old = change.of_model, self.of(change.of_model)
        if model not in self._own and len(self._own) >= MODELS_MAX:
            raise CapacityExceeded(
                f"{MODELS_MAX} models have thresholds of their own, the most there may be"
            )
        self.changes += 1
        blocks = change.active_decode_blocks_threshold
        tokens = change.active_prefill_tokens_threshold
        self._own[model] = BusyThresholds(
            old.decode_blocks if blocks is UNSET else blocks,
            old.prefill_tokens if tokens is UNSET else tokens,
        )
        return self._view(model)

    def restore(self, kept: Iterable[BusyThresholdView]) -> None:
        """As `own_views` had them; models that have been told something since keep that."""
        for view in kept:
            own = BusyThresholds(
                view.active_decode_blocks_threshold, view.active_prefill_tokens_threshold
            )
            if len(self._own) < MODELS_MAX:
                self._own.setdefault(view.model, own)

    def own_views(self) -> list[BusyThresholdView]:
        """Models that have thresholds of their own, by name."""
        return [self._view(model) for model in sorted(self._own)]

    def views(self, models: Set[str]) -> list[BusyThresholdView]:
        """Every model that is judged, or was told not to be, by name.

        models: those that have workers, for which the thresholds of the process may count
        """
        named = set(self._own) if self.default.off else self._own.keys() | models
        return [self._view(model) for model in sorted(named)]

    def _view(self, model: str) -> BusyThresholdView:
        found = self.of(model)
        return BusyThresholdView(
            model=model,
            active_decode_blocks_threshold=found.decode_blocks,
            active_prefill_tokens_threshold=found.prefill_tokens,
        )
