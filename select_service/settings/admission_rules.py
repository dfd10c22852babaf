"""Settings and the policy file -> the rules of the admission stage."""

import msgspec

from select_service.core.admission.policy_classes import (
    PolicyClass,
    PolicyDocument,
    PolicyError,
    PolicyFile,
    Profile,
    QueueBounds,
    QueueRules,
    single_class,
)
from select_service.core.admission.rules import AdmissionRules
from select_service.core.admission.thresholds import BusyThresholds
from select_service.settings.config import Config, ConfigError
from select_service.shape_errors import converted
from select_service.yaml_document import read_document

POLICY_BYTES_MAX = 1 << 20
CLASS_THRESHOLD_FRAC = 16.0
"""Of classes that name no threshold, when --queue-threshold is not given either.  Source: the
reference's default."""
HOLD_THRESHOLD_FRAC = 1.0
"""The same, of classes with the queue policy `work`."""


def admission_rules(config: Config) -> AdmissionRules:
    """Raises ConfigError."""
    tiers = config["priority_tiers"]
    default = config["priority_default_tier"] or tiers[len(tiers) // 2]
    if default not in tiers:
        raise ConfigError(
            f"--priority-default-tier: expected one of {', '.join(tiers)}, got `{default}`"
        )
    return AdmissionRules(
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
    of_model: dict[str, Profile] = {}
    _check_hold(config)
    if path is not None:
        default, of_model = _profiles(path, threshold)
    elif threshold is not None:
        default = single_class(config["queue_policy"], threshold)
    else:
        return None
    bounds = QueueBounds(config["queue_max_requests"], config["queue_max_tokens"])
    rules = QueueRules(default, of_model, timeout_s=config["queue_timeout_s"], bounds=bounds)
    if rules.holds and config["policy"] == "reference":
        what = "--queue-policy work" if path is None else f"policy file {path}: queue_policy work"
        raise ConfigError(
            f"{what} goes by the work that is left on ranks, which --policy reference does not "
            "follow: use --policy work, or another queue policy"
        )
    return rules


def _check_hold(config: Config) -> None:
    """Raises ConfigError where `--queue-policy work` would count for nothing."""
    if config["queue_policy"] != "work":
        return
    if config["policy_config"] is not None:
        raise ConfigError(
            "--queue-policy work counts for nothing beside --policy-config: give the classes of "
            "that file `queue_policy: work`"
        )
    if config["queue_threshold"] is None:
        raise ConfigError(
            "--queue-policy work needs --queue-threshold, such as 1: nobody waits without one"
        )


def _profiles(path: str, threshold_frac: float | None) -> tuple[Profile, dict[str, Profile]]:
    """The profile of all models, and those of single ones."""
    document = _read(path)
    try:
        default = _profile(document, threshold_frac)
    except PolicyError as error:
        raise ConfigError(f"policy file {path}: {error}") from None
    of_model = {}
    for model, own in document.models.items():
        try:
            of_model[model] = _profile(own, threshold_frac)
        except PolicyError as error:
            raise ConfigError(f"policy file {path}: model `{model}`: {error}") from None
    return default, of_model


def _profile(document: PolicyDocument, threshold_frac: float | None) -> Profile:
    classes = [_with_threshold(each, threshold_frac) for each in document.policy_classes]
    return Profile(msgspec.structs.replace(document, policy_classes=classes))


def _with_threshold(rules: PolicyClass, frac: float | None) -> PolicyClass:
    if rules.prefill_busy_threshold is not None or rules.prefill_busy_threshold_frac is not None:
        return rules
    if frac is None:
        frac = HOLD_THRESHOLD_FRAC if rules.holds else CLASS_THRESHOLD_FRAC
    return msgspec.structs.replace(rules, prefill_busy_threshold_frac=frac)


def _read(path: str) -> PolicyFile:
    try:
        return converted(read_document(path, POLICY_BYTES_MAX), PolicyFile)
    except ValueError as error:
        raise ConfigError(f"policy file {path}: {error}") from None
