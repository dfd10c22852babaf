"""Reader of YAML files with one entry per model."""

from collections.abc import Mapping
from typing import Any

from select_service.base.shape_errors import convert_document
from select_service.base.suggestions import printable_name
from select_service.config.settings_loader import ConfigError
from select_service.files.yaml_document import read_document

MODELS_MAX = 1024


def read_by_model(
    what: str, path: str, kind: Any, instead: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the entries of a file by model: the whole document, or its `models` mapping.

    what: name of the file in messages
    kind: type of an entry
    instead: see `convert_document`
    Raises ConfigError.
    """
    place, entries = f"{what} {path}", {}
    try:
        document = read_document(path)
        if isinstance(document, dict) and list(document) == ["models"]:
            inner: object = document["models"]
            document = inner if isinstance(inner, dict) else document
        models = convert_document(document, dict[str, Any])
        if len(models) > MODELS_MAX:
            raise ValueError(f"{len(models)} models (limit {MODELS_MAX})")
        for name, each in models.items():
            place = f"{what} {path}: model `{printable_name(name)}`"
            entries[name] = convert_document(each, kind, instead)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    return entries
