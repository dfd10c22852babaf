"""Descriptions of struct fields, read from the docstrings below the fields in the source.

    class Reservation(Struct):
        reservation_id: str
        '''Id of the reservation in later calls.'''

The description of a field is thus written once, next to the field.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

import msgspec


def field_texts(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the one-line text of every field by its JSON name, including fields of bases."""
    texts: dict[str, str] = {}
    # Bases first, so that a subclass can override the text of an inherited field.
    for each in reversed(struct.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            texts |= _own_texts(each)
    fields = msgspec.structs.fields(struct)
    return {f.encode_name: texts[f.name] for f in fields if f.name in texts}


def _own_texts(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the texts of the fields that the struct itself defines, by attribute name."""
    definition = _classes_of_module(struct.__module__)[struct.__name__]
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


# A module defines many structs, and parsing its source takes milliseconds.
@cache
def _classes_of_module(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the class definitions at the top level of the module, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
