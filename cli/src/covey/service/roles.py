"""What may be a service, and its command line: checked by the command's own parser, with every path made absolute.

A service has no present folder and no terminal, so nothing may depend on either: also the folders that the command
would find by the environment are written out.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from covey_fleet_client.calls import parse_controller_url
from covey_fleet_client.errors import FleetError

from covey.commands.gateway_options import check_gateway_flags
from covey.commands.source_options import parse_source
from covey.errors import CommandError, ExitCode

# A whole join token, wherever in a word it is.
_TOKEN = re.compile(r"covey-[0-9a-f]+\.[A-Za-z0-9_-]+\.[0-9a-f]+")
_PATH_FLAGS = frozenset(
    f"--{name}"
    for name in (
        "state",
        "cache",
        "token-file",
        "authority-file",
        "table",
        "age-key-file",
        "webhook-secret-file",
        "kubeconfig",
        "tls-cert",
        "tls-key",
        "access-log",
    )
)
_NOT_FOR_SERVICES = {"--lifeline": "belongs to a parent of parts", "--stop-all": "ends at once"}


@dataclass(frozen=True, slots=True)
class Role:
    """`parser`: `module:attribute` of what checks its command line."""

    parser: str
    has_cache: bool
    needs_token: bool
    identity: str = ""
    """The folder of the certificate that makes a token needless."""


ROLES = {
    "up": Role("covey.commands.up:up", has_cache=True, needs_token=False),
    "join": Role("covey.commands.join:join", has_cache=True, needs_token=True, identity="agent"),
    "controller": Role("covey_controller.main:parse_options", has_cache=False, needs_token=False),
    "agent": Role("covey_agent.options:parse_options", has_cache=True, needs_token=True, identity="agent"),
    "gateway": Role("covey_gateway.main:parse_options", has_cache=False, needs_token=True, identity="gateway"),
}


def render_arguments(role: str, given: Sequence[str], folder: Path, state: Path, cache: Path) -> list[str]:
    """The role's command line for a service. `folder`: what relative paths are relative to; `state` and `cache`: where
    none is given. CommandError, or the parser's own refusal, for what it wouldn't take."""
    refuse_secrets(given)
    known = ROLES[role]
    module, _, attribute = known.parser.partition(":")
    parser: Any = getattr(import_module(module), attribute)
    if isinstance(parser, click.Command):
        arguments = list(_anchor_click(parser, role, given, folder))
    else:
        arguments = list(_anchor_flags(given, folder))
    if "--state" not in _flags(arguments):
        arguments += ["--state", str(state)]
    if known.has_cache and "--cache" not in _flags(arguments):
        arguments += ["--cache", str(cache)]
    _check(parser, role, arguments)
    return arguments


def refuse_secrets(given: Sequence[str]) -> None:
    if any(_TOKEN.search(word) for word in given):
        words = "a token must not be on a command line, which others can read: write it into a file of mode 0600"
        raise CommandError(f"{words}, and give `--token-file FILE`", ExitCode.WRONG_USE)


def find_value(arguments: Sequence[str], flag: str) -> str:
    """Of a flag on a rendered command line; empty when it isn't there."""
    for number, word in enumerate(arguments):
        if word == flag and number + 1 < len(arguments):
            return arguments[number + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


def _check(parser: Any, role: str, arguments: list[str]) -> None:
    if isinstance(parser, click.Command):
        with parser.make_context(f"covey {role}", list(arguments)) as context:
            url = str(context.params.get("url", ""))
            check_gateway_flags(context.params)
    else:
        check: Callable[[list[str]], object] = parser
        check(arguments)
        url = find_value(arguments, "--controller")
    try:
        if url:
            parse_controller_url(url)
    except FleetError as error:
        raise CommandError(error.message, ExitCode.WRONG_USE) from None


def _anchor_click(command: click.Command, role: str, given: Sequence[str], folder: Path) -> Iterator[str]:
    """By the command's own options: each that was given, then its argument."""
    with command.make_context(f"covey {role}", list(given)) as context:
        values = context.params
        sources = {name: context.get_parameter_source(name) for name in values}
    argument = ""
    for parameter in command.params:
        name, value = parameter.name or "", values.get(parameter.name or "")
        if isinstance(parameter, click.Argument):
            argument = _anchor_source(str(value), folder) if role == "up" else str(value)
        elif sources.get(name) is click.core.ParameterSource.COMMANDLINE and isinstance(parameter, click.Option):
            given_values: tuple[Any, ...] = tuple(value or ()) if parameter.multiple else (value,)
            for each in given_values:
                yield max(parameter.opts, key=len)
                if not parameter.is_flag:
                    yield _anchor(str(each), folder) if isinstance(parameter.type, click.Path) else str(each)
    yield argument


def _anchor_flags(given: Sequence[str], folder: Path) -> Iterator[str]:
    """Of argparse's: `--flag VALUE` and `--flag=VALUE`."""
    words = iter(given)
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if flag in _NOT_FOR_SERVICES:
            raise CommandError(f"{flag} {_NOT_FOR_SERVICES[flag]}: a service can't have it", ExitCode.WRONG_USE)
        yield flag
        if equals or flag in _PATH_FLAGS or flag == "--source":
            value = value if equals else next(words, "")
            if flag == "--source":
                value = _anchor_source(value, folder)
            yield _anchor(value, folder) if flag in _PATH_FLAGS else value


def _anchor(text: str, folder: Path) -> str:
    """`-` is standard output."""
    return text if text in ("", "-") else str(folder / Path(text).expanduser())


def _anchor_source(text: str, folder: Path) -> str:
    """A folder or file, which must be there; or a repository's address as it is."""
    found = parse_source(text if text.startswith("git+") else str(folder / Path(text).expanduser()))
    return str(found)


def _flags(arguments: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in arguments if word.startswith("--")}
