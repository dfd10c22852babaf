"""A YAML file of settings by model."""

from collections.abc import Mapping
from typing import Any

from select_service.settings.config import ConfigError
from select_service.shape_errors import converted
from select_service.spelling import shown
from select_service.yaml_document import read_document

MODELS_MAX = 1024


def by_model(
    what: str, path: str, kind: Any, instead: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what the file says of models: all of it, or what stands under `models`.

    what: it is called so in messages
    kind: what stands there of one model
    instead: see `converted`
    Raises ConfigError.
    """
    try:
        document = read_document(path)
        if isinstance(document, dict) and list(document) == ["models"]:
            inner: object = document["models"]
            document = inner if isinstance(inner, dict) else document
        models = converted(document, dict[str, Any])
        if len(models) > MODELS_MAX:
            raise ValueError(f"{len(models)} models, and there may be {MODELS_MAX}")
        return {name: _of(name, each, kind, instead) for name, each in models.items()}
    except ValueError as error:
        raise ConfigError(f"{what} {path}: {error}") from None


def _of(name: str, document: object, kind: Any, instead: Mapping[str, str] | None) -> Any:
    """Raises ValueError."""
    try:
        return converted(document, kind, instead)
    except ValueError as error:
        raise ValueError(f"model `{shown(name)}`: {error}") from None
