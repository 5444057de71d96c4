"""Changing a document of the vault: read, decide, replace; again when another replica was faster.

What the documents mean is `authority`'s, `tokens`' and `denials`'; where they are kept is the adapter's.
"""

from collections.abc import Callable

from covey_controller.ports import Conflict, Vault, VaultUnavailable

AUTHORITY_CERTIFICATES = "authority.pem"
AUTHORITY_KEYS = "authority.key"
FLEET_SECRET = "fleet.secret"  # noqa: S105 - a name
TOKENS = "tokens.json"
DENIALS = "denials.json"

# Each try that fails means that another writer's one succeeded; a fleet of a hundred pods that joins at once has one
# leader that writes, and a leader that is being replaced beside it.
MAX_TRIES = 16


async def change_document(vault: Vault, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
    """What the document holds then. `change` may be called again with newer content; what it raises ends the change."""
    for _ in range(MAX_TRIES):
        seen = await vault.read(name)
        content = change(seen)
        if content == seen:
            return content
        try:
            await vault.replace(name, content, seen=seen)
        except Conflict:
            continue
        return content
    raise VaultUnavailable(f"'{name}' was changed by others {MAX_TRIES} times while it was to be changed; try again")
