"""SOURCE of `covey up`, and the options that say how it is followed. They are the controller's own flags."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from covey_controller.stores.git.address import GitAddress, is_git_address, parse_git_address

from covey.errors import CommandError, ExitCode

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--push", is_flag=True, help="Git source: push what apply and delete commit (else it stays here)."),
    click.option("--poll-seconds", type=float, metavar="N", help="Git source: how often to ask (30; git+file: 2)."),
    click.option("--webhook-listen", metavar="HOST:PORT", help="Where a forge may POST that something was pushed."),
    click.option(
        "--webhook-secret-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File (mode 0600) with the secret that the forge must prove.",
    ),
    click.option(
        "--age-key-file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="SOPS_AGE_KEY_FILE",
        help="File (mode 0600) with the age keys that open encrypted Secrets; also SOPS_AGE_KEY_FILE.",
    ),
)
_GIT_ONLY = ("push", "poll_seconds")


def source_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parse_source(text: str) -> Path | GitAddress:
    """CommandError with code 2 when it is neither."""
    if is_git_address(text):
        try:
            return parse_git_address(text)
        except ValueError as error:
            raise CommandError(str(error), ExitCode.WRONG_USE) from error
    source = Path(text)
    if not source.exists():
        raise CommandError(f"source '{source}' must be a folder or a file; there is nothing", ExitCode.WRONG_USE)
    return source.resolve()


def render_source_flags(source: Path | GitAddress, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The controller's flags; what it would refuse is refused here, before anything starts."""
    flags: list[str] = []
    for name, value in given.items():
        if not value:
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in _GIT_ONLY and isinstance(source, Path):
            raise CommandError(f"{flag} must be given with a git source only", ExitCode.WRONG_USE)
        if isinstance(value, Path):
            flags += [flag, str(value.expanduser().absolute())]
        else:
            flags += [flag] if value is True else [flag, str(value)]
    _check_webhook(given.get("webhook_listen"), given.get("webhook_secret_file"))
    _check_keys(given.get("age_key_file"))
    return tuple(flags)


def _check_keys(path: Path | None) -> None:
    if path is None:
        return
    from covey_controller.stores.files.age_keys import read_age_keys  # only here: it loads a native library

    try:
        read_age_keys(path.expanduser())
    except (OSError, ValueError) as error:
        raise CommandError(f"--age-key-file: {error}", ExitCode.WRONG_USE) from error


def _check_webhook(listen: str | None, secret_file: Path | None) -> None:
    if (listen is None) != (secret_file is None):
        raise CommandError("--webhook-listen and --webhook-secret-file must be given together", ExitCode.WRONG_USE)
    if secret_file is None:
        return
    from covey_controller.control_api.webhook import read_webhook_secret  # only here: it imports a web framework

    try:
        read_webhook_secret(secret_file.expanduser())
    except (OSError, ValueError) as error:
        raise CommandError(f"--webhook-secret-file: {error}", ExitCode.WRONG_USE) from error
