"""The controller's flags that say where desired objects come from, parsed into a source.

Wrong ones end the process with code 2 and words; a source that can't be reached now is no wrong flag.
"""

import argparse
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from covey_controller.addresses import parse_address
from covey_controller.control_api.webhook import read_webhook_secret
from covey_controller.stores.files.age_keys import KEY_FILE_VARIABLE, AgeKeys, find_age_key_file, read_age_keys
from covey_controller.stores.files.store import store_paths
from covey_controller.stores.git.address import is_git_address, parse_git_address
from covey_controller.stores.git.settings import GitSettings

# Asked more often, a remote gains nothing that the webhook doesn't give; less often than a day is never.
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a forge may call, and what it must prove."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """What files mode needs to know beside the addresses."""

    source: Path | GitSettings
    allow_empty: bool
    webhook: Webhook | None
    keys: AgeKeys | None


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        metavar="SOURCE",
        help="directory or file that holds the documents, or git+https://HOST/REPO#PATH@REF (git+ssh://, git+file://)",
    )
    parser.add_argument("--allow-empty", action="store_true", help="an empty or missing source deletes all objects")
    parser.add_argument("--push", action="store_true", help="push what apply and delete commit (else it stays here)")
    parser.add_argument(
        "--poll-seconds", type=float, metavar="N", help="how often a remote is asked (default: 30; git+file: 2)"
    )
    parser.add_argument("--webhook-listen", metavar="HOST:PORT", help="where a forge may say that something was pushed")
    parser.add_argument(
        "--webhook-secret-file", type=Path, metavar="FILE", help="0600 file with the secret that it must prove"
    )
    parser.add_argument(
        "--age-key-file",
        type=Path,
        metavar="FILE",
        help=f"0600 file with the age keys that open encrypted Secrets (default: {KEY_FILE_VARIABLE})",
    )


def parse_files_options(parser: argparse.ArgumentParser, given: argparse.Namespace, folder: Path) -> FilesOptions:
    """`folder`: the controller's own."""
    source = parse_source(parser, given, folder)
    return FilesOptions(source, given.allow_empty, parse_webhook(parser, given), parse_keys(parser, given))


def parse_keys(parser: argparse.ArgumentParser, given: argparse.Namespace) -> AgeKeys | None:
    """The keys that open Secrets, if any were given."""
    path = find_age_key_file(given.age_key_file)
    try:
        return read_age_keys(path) if path is not None else None
    except (OSError, ValueError) as error:
        parser.error(f"`--age-key-file`: {error}")


def parse_source(parser: argparse.ArgumentParser, given: argparse.Namespace, folder: Path) -> Path | GitSettings:
    """The source that the flags mean. `folder`: the controller's own, which may know a folder that is gone now."""
    text: str = given.source
    if is_git_address(text):
        try:
            address = parse_git_address(text)
        except ValueError as error:
            parser.error(f"`--source`: {error}")
        poll_seconds: float | None = given.poll_seconds
        if poll_seconds is not None and not MIN_POLL_SECONDS <= poll_seconds <= MAX_POLL_SECONDS:
            parser.error(f"`--poll-seconds` must be {MIN_POLL_SECONDS:.0f} to {MAX_POLL_SECONDS:.0f}")
        return GitSettings(address, os.environ, _spread, pushes=given.push, poll_seconds=poll_seconds)
    for flag, value in (("--push", given.push), ("--poll-seconds", given.poll_seconds)):
        if value:
            parser.error(f"`{flag}` must be given with a git source only; '{text}' is a directory or a file")
    source = Path(os.path.abspath(text))
    if not source.exists() and not store_paths(source, folder)[0].exists():
        parser.error(f"`--source` must be a directory or a file; there is no '{source}'")
    return source


def parse_webhook(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Webhook | None:
    """The listener that was asked for; its secret is read here, once."""
    listen: str | None = given.webhook_listen
    path: Path | None = given.webhook_secret_file
    if listen is None or path is None:
        if listen != path:
            parser.error("`--webhook-listen` and `--webhook-secret-file` must be given together")
        return None
    host, port = parse_address(parser, "--webhook-listen", listen)
    try:
        return Webhook(host, port, read_webhook_secret(path))
    except (OSError, ValueError) as error:
        parser.error(f"`--webhook-secret-file`: {error}")


def _spread() -> float:
    return random.uniform(0.9, 1.1)  # noqa: S311 - it spreads requests, and protects nothing
