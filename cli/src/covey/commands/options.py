"""Options and arguments that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from covey_api.kinds import Kind
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.registry import parse_kind

from covey.author import find_author
from covey.control import Control, JsonObject
from covey.errors import CommandError, ExitCode
from covey.paths import STATE_VARIABLE, default_state_folder

Command = TypeVar("Command", bound=Callable[..., Any])


def state_option(command: Command) -> Command:
    """`--state DIR`: which Covey on this machine is meant."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state_folder,
        help=f"State folder of the Covey that is meant; also {STATE_VARIABLE}.",
    )(command)


def namespace_option(command: Command) -> Command:
    return click.option(
        "-n", "--namespace", default=DEFAULT_NAMESPACE, show_default=True, help="Namespace of the objects."
    )(command)


def author_option(command: Command) -> Command:
    """`--author`: who an edit is by, where the source is a repository."""
    return click.option(
        "--author",
        default=find_author,
        show_default="as git would name you",
        help="Author of the commit where the source is a git repository: 'Name <email>'.",
    )(command)


def kind_of(word: str) -> type[Kind]:
    """The kind that a word names; wrong use otherwise."""
    try:
        return parse_kind(word)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from error


def parse_targets(words: tuple[str, ...]) -> list[tuple[type[Kind], str]]:
    """`KIND NAME…` or `KIND/NAME…`, as kubectl takes them."""
    if not words:
        raise CommandError("say which object: KIND NAME, or KIND/NAME", ExitCode.WRONG_USE)
    if "/" in words[0]:
        pairs = [word.partition("/") for word in words]
        if any(not separator or not name for _, separator, name in pairs):
            raise CommandError("give every object as KIND/NAME, or one KIND and names after it", ExitCode.WRONG_USE)
        return [(kind_of(kind), name) for kind, _, name in pairs]
    if len(words) == 1:
        raise CommandError(f"say which {kind_of(words[0]).SINGULAR}: {words[0]} NAME", ExitCode.WRONG_USE)
    return [(kind_of(words[0]), name) for name in words[1:]]


def namespace_of(kind: type[Kind], namespace: str) -> str:
    return namespace if kind.NAMESPACED else ""


def print_results(results: list[JsonObject]) -> None:
    """One line a document, as kubectl prints them."""
    for result in results:
        click.echo(f"{kind_of(result['kind']).SINGULAR}/{result['name']} {result['outcome']}")


def open_control(state: Path) -> Control:
    return Control(state)
