"""What the fields of a struct mean: the strings that stand below them in its source.

    class Reservation(Struct):
        reservation_id: str
        '''Its name in later calls.'''

So the text of a field stands once, next to it, in the form of all our docstrings.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

import msgspec


def field_texts(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Name of a field as in JSON -> its text, in one line; those of bases included."""
    texts: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            texts |= _own_texts(each)
    fields = msgspec.structs.fields(struct)
    return {f.encode_name: texts[f.name] for f in fields if f.name in texts}


def _own_texts(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    definition = _classes(struct.__module__)[struct.__name__]
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
