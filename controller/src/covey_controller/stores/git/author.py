"""Who is named in a commit: `Name <email>`, as git writes it. Pure."""

import re

from covey_controller.stores.git.clone import COMMITTER, Signature

# Longer ones are no name, and would be kept in the history for ever.
MAX_AUTHOR_LENGTH = 200
_AUTHOR = re.compile(r"\s*([^<>\x00-\x1f\x7f]*?)\s*<([^<>\x00-\x20\x7f]+)>\s*")


def parse_author(text: str, message: str) -> Signature:
    """The author with a message; who writes the commit when there is no author. ValueError if it can't be read."""
    if not text:
        return Signature(*COMMITTER, message)
    found = _AUTHOR.fullmatch(text) if len(text) <= MAX_AUTHOR_LENGTH else None
    if found is None or not found[1].strip(".,:;\"' "):
        raise ValueError(f"author must be 'Name <email>' of at most {MAX_AUTHOR_LENGTH} characters; got '{text[:80]}'")
    return Signature(found[1], found[2], message)
