"""Busy thresholds: two per model, adjustable at runtime.

    busy = active_decode_blocks / total_kv_blocks > active_decode_blocks_threshold
        or active_prefill_tokens > active_prefill_tokens_threshold

A worker is busy when all its ranks are.

Source: the request rejection document of Dynamo ("Busy Detection Logic").
"""

from collections.abc import Iterable, Set
from typing import NamedTuple

from msgspec import UNSET

from select_service.base.errors import CapacityExceeded
from select_service.schemas.admission import BusyThresholdChange, BusyThresholdView

MODELS_MAX = 1024
"""Maximum number of models with their own thresholds.

Thresholds outlive the last worker of a model, since the model may return.
"""


class BusyThresholds(NamedTuple):
    """Busy thresholds of a model.

    decode_blocks: used share of the KV cache, 0 to 1; None means no check
    prefill_tokens: active prefill tokens; None means no check
    """

    decode_blocks: float | None = None
    prefill_tokens: int | None = None

    def scaled_by(self, share: float) -> "BusyThresholds":
        """Return the thresholds multiplied by `share`."""
        if share == 1.0 or self.is_off:
            return self
        blocks, tokens = self.decode_blocks, self.prefill_tokens
        return BusyThresholds(
            None if blocks is None else blocks * share,
            None if tokens is None else int(tokens * share),
        )

    @property
    def is_off(self) -> bool:
        return self.decode_blocks is None and self.prefill_tokens is None


class ThresholdTable:
    """Thresholds of every model: its own, or the default of the process."""

    def __init__(self, default: BusyThresholds) -> None:
        self.default = default
        self._by_model: dict[str, BusyThresholds] = {}
        self.changes = 0

    @property
    def is_off(self) -> bool:
        """Whether no model has thresholds."""
        return self.default.is_off and all(own.is_off for own in self._by_model.values())

    def thresholds_of(self, model_name: str) -> BusyThresholds:
        return self._by_model.get(model_name, self.default)

    def change_thresholds(self, change: BusyThresholdChange) -> BusyThresholdView:
        """Set the given thresholds, clear those that are null, keep the rest.  Raises
        CapacityExceeded.
        """
        model, old = change.resolved_model, self.thresholds_of(change.resolved_model)
        if model not in self._by_model and len(self._by_model) >= MODELS_MAX:
            raise CapacityExceeded(
                f"threshold limit reached: {MODELS_MAX} models have their own thresholds"
            )
        self.changes += 1
        blocks = change.active_decode_blocks_threshold
        tokens = change.active_prefill_tokens_threshold
        self._by_model[model] = BusyThresholds(
            old.decode_blocks if blocks is UNSET else blocks,
            old.prefill_tokens if tokens is UNSET else tokens,
        )
        return self._make_view(model)

    def restore_thresholds(self, persisted: Iterable[BusyThresholdView]) -> None:
        """Restore thresholds saved from `own_views`; models changed since the start keep theirs."""
        for view in persisted:
            own = BusyThresholds(
                view.active_decode_blocks_threshold, view.active_prefill_tokens_threshold
            )
            # Models changed since the start may have used up the limit.
            if len(self._by_model) < MODELS_MAX:
                self._by_model.setdefault(view.model, own)

    def own_views(self) -> list[BusyThresholdView]:
        """Return the models with their own thresholds, by name."""
        return [self._make_view(model) for model in sorted(self._by_model)]

    def list_views(self, models: Set[str]) -> list[BusyThresholdView]:
        """Return every model with thresholds, or with cleared thresholds, by name.

        models: models with workers, to which the default thresholds may apply
        """
        named = set(self._by_model) if self.default.is_off else self._by_model.keys() | models
        return [self._make_view(model) for model in sorted(named)]

    def _make_view(self, model: str) -> BusyThresholdView:
        found = self.thresholds_of(model)
        return BusyThresholdView(
            model=model,
            active_decode_blocks_threshold=found.decode_blocks,
            active_prefill_tokens_threshold=found.prefill_tokens,
        )
