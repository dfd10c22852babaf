"""A YAML file of settings by model."""

from select_service.settings.config import ConfigError
from select_service.yaml_document import read_document


def by_model(what: str, path: str) -> object:
    """What the file says of models: all of it, or what stands under `models`.

    what: it is called so in messages
    Raises ConfigError.
    """
    try:
        document = read_document(path)
    except ValueError as error:
        raise ConfigError(f"{what} {path}: {error}") from None
    if isinstance(document, dict) and list(document) == ["models"]:
        inner: object = document["models"]
        return inner if isinstance(inner, dict) else document
    return document
