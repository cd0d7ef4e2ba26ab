"""What a strict model found wrong with a value, in a reader's words instead of the library's."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "byte_size": "a size such as 4GiB",
    "byte_size_unit": "a size such as 4GiB",
    "dict_type": "a mapping of keys to values",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a value greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": "a whole number",
    "invalid_key": "text as key",
    "json_invalid": "JSON of a few levels, with numbers that it knows",
    "less_than": "a value less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "missing": "one entry more",
    "model_attributes_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "path_type": "a path",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_type": "text",
    "string_unicode": "text",
    "too_long": "at most {max_length} entries",
    "too_short": "{min_length} or more entries",
    "tuple_type": "a list",
}
_SECTIONS = {"dict_type", "model_attributes_type", "model_type"}
_SHOWN_ENTRIES, _LONGEST_LIST = 4, 120
_OWN_WORDS = ("Value error, ", "Assertion failed, ")


def fault_in_words(fault: Mapping[str, Any]) -> str:
    """What was expected and what was found, from one entry of a ``ValidationError``.

    A fault that a validator of ours raised keeps the words that it was raised with; what was found
    is added where they don't say it and it is no whole section, which would bury the rest.
    """
    said, found = str(fault["msg"]), fault["input"]
    for prefix in _OWN_WORDS:
        if said.startswith(prefix):
            said = said.removeprefix(prefix)
            named = "found" in said or isinstance(found, dict | BaseModel)
            return said if named else f"{said}, found {shown(found)}"
    limits = {name: _plain(limit) for name, limit in fault.get("ctx", {}).items()}
    expected = _EXPECTED.get(fault["type"], "another value").format(**limits)
    if fault["type"] == "missing" and isinstance(found, dict):
        return "is missing"
    # Text where a section belongs may be the secret that the section should say the place of.
    hidden = isinstance(found, str) and fault["type"] in _SECTIONS
    return f"expected {expected}, found {'text' if hidden else shown(found)}"


def _plain(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def shown(value: object) -> str:
    """A value as a message may show it: short, and never a URL, which may hold a password."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | BaseModel):
        return "a mapping"
    if isinstance(value, bytes):
        return "other bytes"
    if isinstance(value, list | tuple):
        first = value[:_SHOWN_ENTRIES]
        entries = ["a list" if isinstance(entry, list) else shown(entry) for entry in first]
        return f"[{', '.join(entries + ['...'] * (len(value) > _SHOWN_ENTRIES))}]"[:_LONGEST_LIST]
    text = reprlib.repr(value)
    return "a URL" if "://" in text else text
