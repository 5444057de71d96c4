"""Who is named in a commit: `Name <email>`, as git writes it. Pure."""

import re

from covey_controller.stores.git.objects import COMMITTER, Signature

# Longer ones are no name, and would be kept in the history for ever.
MAX_AUTHOR_LENGTH = 200
# Empty, or a name that isn't only what git strips from names, and an address.
AUTHOR_PATTERN = r"^([^<>\x00-\x1f\x7f]*[^<>\x00-\x20\x7f.,:;'\"][^<>\x00-\x1f\x7f]* <[^<>\x00-\x20\x7f]+>)?$"


def parse_author(text: str, message: str) -> Signature:
    """The author with a message; who writes the commit when there is no author. ValueError if it can't be read."""
    if not text:
        return Signature(*COMMITTER, message)
    if len(text) > MAX_AUTHOR_LENGTH or not re.search(AUTHOR_PATTERN, text):
        raise ValueError(f"author must be 'Name <email>' of at most {MAX_AUTHOR_LENGTH} characters; got '{text[:80]}'")
    name, _, email = text.rpartition(" <")
    return Signature(name.strip(), email.removesuffix(">"), message)
