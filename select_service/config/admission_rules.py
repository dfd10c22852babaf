"""Admission rules from the settings and the policy file."""

import msgspec

from select_service.base.shape_errors import convert_document
from select_service.config.settings_loader import Config, ConfigError
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.admission.policy_classes import (
    PolicyClass,
    PolicyClassProfile,
    PolicyDocument,
    PolicyFile,
    QueueBounds,
    QueueRules,
    single_class_profile,
)
from select_service.files.yaml_document import read_document

POLICY_BYTES_MAX = 1 << 20
CLASS_THRESHOLD_FRAC = 16.0
"""Default threshold of classes, if --queue-threshold is not given.

Source: Dynamo's default.
"""
HOLD_THRESHOLD_FRAC = 1.0
"""The same default for classes with the queue policy `work`."""


def admission_rules(config: Config) -> AdmissionSettings:
    """Return the admission rules.  Raises ConfigError."""
    tiers = config["priority_tiers"]
    default = config["priority_default_tier"] or tiers[len(tiers) // 2]
    if default not in tiers:
        raise ConfigError(
            f"--priority-default-tier: expected one of {', '.join(tiers)}, got `{default}`"
        )
    return AdmissionSettings(
        thresholds=BusyThresholds(
            config["decode_blocks_threshold"], config["prefill_tokens_threshold"]
        ),
        queue=_queue_rules(config),
        tiers=tiers,
        default_tier=default,
        engine_stale_s=config["engine_metrics_stale_s"],
    )


def _queue_rules(config: Config) -> QueueRules | None:
    path, threshold = config["policy_config"], config["queue_threshold"]
    of_model: dict[str, PolicyClassProfile] = {}
    _check_hold(config)
    if path is not None:
        default, of_model = _read_profiles(path, threshold)
    elif threshold is not None:
        default = single_class_profile(config["queue_policy"], threshold)
    else:
        return None
    bounds = QueueBounds(config["queue_max_requests"], config["queue_max_tokens"])
    rules = QueueRules(default, of_model, timeout_s=config["queue_timeout_s"], bounds=bounds)
    # The reference policy of Dynamo has no notion of remaining work.
    if rules.waits_for_work and config["policy"] == "reference":
        what = "--queue-policy work" if path is None else f"policy file {path}: queue_policy work"
        raise ConfigError(
            f"{what} needs the remaining work of ranks, which Dynamo's rule (--policy reference) "
            "does not track: "
            "use --policy work, or another queue policy"
        )
    return rules


def _check_hold(config: Config) -> None:
    """Raise ConfigError if `--queue-policy work` would have no effect."""
    if config["queue_policy"] != "work":
        return
    if config["policy_config"] is not None:
        raise ConfigError(
            "--queue-policy work has no effect with --policy-config: set `queue_policy: work` in "
            "the classes of that file"
        )
    if config["queue_threshold"] is None:
        raise ConfigError(
            "--queue-policy work requires --queue-threshold, such as 1: queueing is off without it"
        )


def _read_profiles(
    path: str, threshold_frac: float | None
) -> tuple[PolicyClassProfile, dict[str, PolicyClassProfile]]:
    """Return the default profile and the profiles by model."""
    place = f"policy file {path}"
    of_model = {}
    try:
        document = convert_document(read_document(path, POLICY_BYTES_MAX), PolicyFile)
        default = _make_profile(document, threshold_frac)
        for model, own in document.models.items():
            place = f"policy file {path}: model `{model}`"
            of_model[model] = _make_profile(own, threshold_frac)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    return default, of_model


def _make_profile(document: PolicyDocument, threshold_frac: float | None) -> PolicyClassProfile:
    classes = [_with_threshold(each, threshold_frac) for each in document.policy_classes]
    return PolicyClassProfile(msgspec.structs.replace(document, policy_classes=classes))


def _with_threshold(rules: PolicyClass, frac: float | None) -> PolicyClass:
    if rules.prefill_busy_threshold is not None or rules.prefill_busy_threshold_frac is not None:
        return rules
    # A class without a threshold in a file without --queue-threshold still needs a limit.
    if frac is None:
        frac = HOLD_THRESHOLD_FRAC if rules.waits_for_work else CLASS_THRESHOLD_FRAC
    return msgspec.structs.replace(rules, prefill_busy_threshold_frac=frac)
