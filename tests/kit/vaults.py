"""Documents of a vault of files, from tests that have no event loop: a vault of files never waits."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from covey_controller.authority import Authority
from covey_controller.denials import Denials, open_denials
from covey_controller.stores.files.vault import FilesVault
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust, ensure_authority, ensure_fleet_secret, open_trust

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that ends without waiting."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("the coroutine must not wait")


def authority_in(folder: Path, now: float) -> Authority:
    return finish(ensure_authority(FilesVault(folder), now))


def trust_in(folder: Path, now: float) -> Trust:
    return finish(open_trust(FilesVault(folder), now))


def fleet_secret_in(folder: Path) -> bytes:
    return finish(ensure_fleet_secret(FilesVault(folder)))


def denials_in(folder: Path) -> Denials:
    return finish(open_denials(FilesVault(folder)))


def tokens_in(folder: Path, digest: str = "0" * 64) -> Tokens:
    tokens = Tokens(FilesVault(folder), lambda: digest)
    finish(tokens.check())
    return tokens
