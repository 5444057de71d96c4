"""Regular expressions in JSON schemas that would hang an engine, told by their text alone.

llama.cpp makes a grammar of a `pattern` and follows every way through it at once: each element that may be left out, up
to the next one that may not, doubles the ways. Twenty characters, `^(c?){1,200}$`, hold the one loop that decodes for
all clients for ever. A pattern of thousands of nested groups ends the process by its stack. Counting what may be left
out is coarser than following it; whoever is refused wrongly reads why, and how to write it.
"""

import re
from typing import Any, cast

# 2^16 ways take a tenth of a second.
MAX_OPTIONAL = 16
# Patterns of dates, URLs and versions have under 200 characters.
MAX_PATTERN = 1024
# Of all together: each is read, character by character.
MAX_PATTERNS = 65_536

# A class that nothing closes is one token: else each of its characters would be where the next one begins.
TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\{(?P<least>\d*),?(?P<most>\d*)\}|.", re.DOTALL)


def find_wild_pattern(schema: Any) -> str | None:
    """Why a pattern somewhere in this value can't be taken; None when all can."""
    waiting: list[Any] = [schema]
    characters = 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            pattern = fields.get("pattern")
            characters += len(pattern) if isinstance(pattern, str) else 0
            if characters > MAX_PATTERNS:
                return f"all `pattern`s together must have at most {MAX_PATTERNS} characters"
            if isinstance(pattern, str) and (words := _weigh_pattern(pattern)) is not None:
                return words
            waiting += fields.values()
    return None


def _weigh_pattern(pattern: str) -> str | None:
    if len(pattern) > MAX_PATTERN:
        return f"a `pattern` must have at most {MAX_PATTERN} characters; got {len(pattern)}"
    optional = _count_optional(pattern)
    if optional <= MAX_OPTIONAL:
        return None
    return (
        f"a `pattern` must have at most {MAX_OPTIONAL} elements that may be left out, counted as often as they are "
        f"repeated; '{pattern[:64]}' has {optional}. Repeat what can't be empty, or use `maxLength`"
    )


def _count_optional(pattern: str) -> int:
    """Elements that may be left out (`?`, `*`, `{0,n}`, an empty alternative), times their groups' repetitions."""
    counts = [0]  # of each open group, and of all outside
    inside = 0  # what the element before holds, if that is a group
    before = "("
    for token in TOKEN.finditer(pattern):
        text = token.group()
        if text == "(":
            counts.append(0)
        elif text == ")" and len(counts) > 1:
            inside = counts.pop() + (before in "(|")
            counts[-1] += inside
        elif token["least"] is not None:
            added = _repeat(token, inside)
            inside += added
            counts[-1] += added
        elif (text in "?*" and before not in "?*+}(") or (text == "|" and before in "(|"):
            counts[-1] += 1
        is_quantifier = text in "?*+" or token["least"] is not None
        if text != ")" and not is_quantifier:
            inside = 0
        before = "}" if token["least"] is not None else text
    return sum(counts)


def _repeat(token: re.Match[str], inside: int) -> int:
    """What a `{m,n}` adds to an element that was counted once."""
    least = int(token["least"] or 0)
    most = int(token["most"] or least)
    return inside * (max(most, least, 1) - 1) + (1 if least == 0 else 0)
