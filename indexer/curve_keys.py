"""Public and secret CURVE keys in their text form: 32 bytes in Z85, 40 characters.

Checks of text only.  Source: https://rfc.zeromq.org/spec/32 (Z85); libzmq refuses other forms.
"""

KEY_CHARS = 40
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_GROUP = 5
"""Number of digits that encode four bytes."""


def curve_key_error(text: str) -> str | None:
    """Return the fault of a key, or None if valid.  The text omits the key, which may be secret."""
    if len(text) != KEY_CHARS:
        return f"a CURVE key has {KEY_CHARS} characters of Z85, this one {len(text)}"
    groups = (text[at : at + _GROUP] for at in range(0, KEY_CHARS, _GROUP))
    return None if all(map(_is_group, groups)) else "the CURVE key is not valid Z85"


def _is_group(digits: str) -> bool:
    value = 0
    for digit in digits:
        if digit not in _VALUES:
            return False
        value = value * len(_DIGITS) + _VALUES[digit]
    return value < 2**32
