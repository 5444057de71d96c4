"""Options and arguments that several commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from covey_api.kinds import Kind
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.registry import parse_kind

from covey.author import find_author
from covey.connect import URL_VARIABLE, Where
from covey.errors import CommandError, ExitCode
from covey.paths import CACHE_VARIABLE, STATE_VARIABLE, default_state_folder
from covey.ports import JsonObject

Command = TypeVar("Command", bound=Callable[..., Any])


NAMESPACE_VARIABLE = "COVEY_FLEET_NAMESPACE"
# Set as the name of the program by the entry point that kubectl calls.
KUBECTL_PROGRAM = "kubectl covey"


def fleet_options_without(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that say which fleet is meant; the command gets them as `where`.

    `left_out`: those whose names mean something else to the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> None:
            named = {name: given.pop(name) for name in _FLEET_OPTIONS if name not in left_out}
            is_plugin = click.get_current_context().find_root().info_name == KUBECTL_PROGRAM
            command(*args, where=Where(**named, prefers_kubernetes=is_plugin), **given)

        decorated: Callable[..., None] = run
        for name, option in reversed(_FLEET_OPTIONS.items()):
            decorated = decorated if name in left_out else option(decorated)
        return decorated

    return decorate


_FLEET_OPTIONS: dict[str, Callable[[Callable[..., None]], Callable[..., None]]] = {
    "state": click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"A Covey on this machine, by its state folder; also {STATE_VARIABLE}.",
    ),
    "url": click.option("--url", help=f"A controller, by the address of its control API; also {URL_VARIABLE}."),
    "kubeconfig": click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A cluster, by a kubeconfig; also KUBECONFIG.",
    ),
    "context": click.option("--context", help="A cluster, by a context of the kubeconfig."),
    "fleet_namespace": click.option(
        "--fleet-namespace",
        envvar=NAMESPACE_VARIABLE,
        help=f"Where the controller runs in the cluster, if it can't be found; also {NAMESPACE_VARIABLE}.",
    ),
}
fleet_options = fleet_options_without()


def state_option(command: Command) -> Command:
    """`--state DIR`: the state folder of what runs on this machine."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state_folder,
        help=f"The state folder; also {STATE_VARIABLE}.",
    )(command)


def cache_option(command: Command) -> Command:
    """`--cache DIR`: the cache of this machine, as `folder`."""
    return click.option(
        "--cache",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"The cache's folder; by default the user's, or {CACHE_VARIABLE}.",
    )(command)


def namespace_option(command: Command) -> Command:
    words = f"Namespace of the objects; by default the context's, or '{DEFAULT_NAMESPACE}'."
    return click.option("-n", "--namespace", help=words)(command)


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


def is_kind(word: str) -> bool:
    try:
        parse_kind(word)
    except ValueError:
        return False
    return True


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
        if not is_kind(words[0]):
            hint = f"say of which kind '{words[0]}' is: KIND/NAME, such as placement/{words[0]}"
            raise CommandError(hint, ExitCode.WRONG_USE)
        raise CommandError(f"say which {kind_of(words[0]).SINGULAR}: {words[0]} NAME", ExitCode.WRONG_USE)
    return [(kind_of(words[0]), name) for name in words[1:]]


def namespace_of(kind: type[Kind], namespace: str) -> str:
    return namespace if kind.NAMESPACED else ""


def print_results(results: list[JsonObject]) -> None:
    """One line a document, as kubectl prints them."""
    for result in results:
        click.echo(f"{kind_of(result['kind']).SINGULAR}/{result['name']} {result['outcome']}")
