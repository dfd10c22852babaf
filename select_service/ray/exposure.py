"""Who may call the selectors of a deployment: the network of the cluster reaches their ports."""

from collections.abc import Mapping, Sequence

from select_service.ray.process import is_given

KEYS = "--api-keys-file"
INSECURE = "--insecure"
REPLICA_KEYS = "--replica-keys-file"


def check_exposure(
    flags: Sequence[str],
    environment: Mapping[str, str],
    api_key_file: str | None,
    *,
    insecure: bool,
) -> None:
    """Raises ValueError where others could call everything and nobody has said that they may.

    api_key_file: what the selectors show to each other
    """
    asks_for_keys = is_given(KEYS, flags, environment)
    is_meant = insecure or is_given(INSECURE, flags, environment)
    if not asks_for_keys and not is_meant:
        raise ValueError(
            "selectors of Ray listen on all addresses of their nodes, and without keys everybody "
            f'who reaches them may call everything: deploy(flags=("{KEYS}", FILE), '
            "api_key_file=FILE), or deploy(insecure=True) on a network that you trust"
        )
    if asks_for_keys and is_meant:
        raise ValueError(f"insecure=True and {KEYS} contradict each other: leave one of them out")
    if asks_for_keys and api_key_file is None:
        raise ValueError(
            f"{KEYS} needs api_key_file, the file of the key that the selectors show to each "
            "other, of the roles operator and replica"
        )


def exposing_flags(flags: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the flags that say that the service is meant to be open, as far as it has no keys."""
    found = ["--host", "0.0.0.0"]
    if not is_given(KEYS, flags, environment) and not is_given(INSECURE, flags, environment):
        found.append(INSECURE)
    if not is_given(REPLICA_KEYS, flags, environment):
        found.append("--replica-sync-insecure")
    return found
