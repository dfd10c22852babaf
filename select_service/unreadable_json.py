"""What reading JSON or MessagePack of others raises, by msgspec: not DecodeError alone."""

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""UnicodeDecodeError: of a text that is not UTF-8.  RecursionError: of nesting too deep, also in
what nobody reads."""
