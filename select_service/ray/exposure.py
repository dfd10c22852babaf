"""Access to the selectors of a deployment: the whole cluster network reaches their ports."""

from collections.abc import Mapping, Sequence

from select_service.ray.child_process import is_setting_given

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
    """Check that a deployment has API keys or is explicitly insecure.

    api_key_file: key file for calls between the selectors
    Raises ValueError.
    """
    asks_for_keys = is_setting_given(KEYS, flags, environment)
    is_meant = insecure or is_setting_given(INSECURE, flags, environment)
    if not asks_for_keys and not is_meant:
        raise ValueError(
            "selectors of Ray listen on all addresses of their nodes and have no API keys: use "
            f'deploy(flags=("{KEYS}", FILE), api_key_file=FILE), or deploy(insecure=True) on a '
            "trusted network"
        )
    if asks_for_keys and is_meant:
        raise ValueError(f"insecure=True and {KEYS} contradict each other: remove one of them")
    if asks_for_keys and api_key_file is None:
        raise ValueError(
            f"{KEYS} needs api_key_file: give the file of the key that the selectors use for each "
            "other, with the roles operator and replica"
        )


def exposing_flags(flags: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the flags that make the service listen on all addresses, without keys if none are
    given.
    """
    found = ["--host", "0.0.0.0"]
    if not is_setting_given(KEYS, flags, environment) and not is_setting_given(
        INSECURE, flags, environment
    ):
        found.append(INSECURE)
    if not is_setting_given(REPLICA_KEYS, flags, environment):
        found.append("--replica-sync-insecure")
    return found
