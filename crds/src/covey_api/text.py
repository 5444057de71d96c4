"""Text from elsewhere (a node, an engine, a model) on its way to a terminal or a log.

An escape sequence in it could rewrite what a person sees, or end a log's line: what isn't for reading is shown as its
escape. Letters of all scripts stay.
"""

import re

# Control characters of both sets but the tab and the line feed, separators of lines, and what turns the order of text.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# The title of that section of a capture.
TRANSITIONS = "transitions, the last one last"


def find_section(text: str, title: str) -> str:
    """The section of a capture below `# title`, with a line's end; empty when there is none."""
    _, found, rest = text.partition(f"\n# {title}\n")
    return f"{rest.partition(chr(10) * 2 + '# ')[0].rstrip()}\n" if found else ""


def escape_controls(text: str) -> str:
    """The same text with escapes (`\\x1b`) in the place of characters that steer a terminal."""
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
