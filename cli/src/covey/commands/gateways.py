"""Gateways in `get` and `delete`: no kind, since nothing of them is wished; what there is are certificates."""

from datetime import UTC, datetime

import click

from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject, Questions
from covey.tables import render_age, render_json, render_table, render_yaml

_WORDS = ("gateway", "gateways")
_HEAD = ("NAME", "CONNECTED", "CURRENT", "ADDRESS", "CERTIFICATE")


def is_gateway(word: str) -> bool:
    """Whether a word of the command line, `KIND` or `KIND/NAME`, speaks of gateways."""
    return word.partition("/")[0] in _WORDS


def parse_gateways(words: tuple[str, ...]) -> list[str]:
    """Names from `gateway NAME…` or `gateway/NAME…`."""
    if "/" not in words[0]:
        names = list(words[1:])
    elif all(is_gateway(word) and "/" in word for word in words):
        names = [word.partition("/")[2] for word in words]
    else:
        raise CommandError("give gateways alone: gateway NAME, or gateway/NAME", ExitCode.WRONG_USE)
    if not names or "" in names:
        raise CommandError("say which gateway: gateway NAME, or gateway/NAME", ExitCode.WRONG_USE)
    return names


def print_gateways(gateways: list[JsonObject], names: tuple[str, ...], output: str | None) -> None:
    """`names`: only these. CommandError NOTHING_MATCHED if one isn't there."""
    chosen = [gateway for gateway in gateways if not names or gateway["name"] in names]
    if output in ("json", "yaml"):
        click.echo(render_json({"items": chosen}) if output == "json" else render_yaml({"items": chosen}))
    elif output == "name":
        for gateway in chosen:
            click.echo(f"gateway/{gateway['name']}")
    elif chosen:
        click.echo(render_table(_HEAD, [_render_row(gateway) for gateway in chosen]))
    elif not names:
        click.echo("No gateways found.", err=True)
    if missing := sorted(set(names) - {gateway["name"] for gateway in chosen}):
        raise CommandError(f"no gateway {', '.join(map(repr, missing))}", ExitCode.NOTHING_MATCHED)


def _render_row(gateway: JsonObject) -> tuple[str, ...]:
    """CERTIFICATE: how long ago its newest was issued."""
    return (
        str(gateway["name"]),
        "True" if gateway["connected"] else "False",
        "True" if gateway["current"] else "False",
        str(gateway["address"]),
        render_age(str(gateway["certificateIssued"]), datetime.now(UTC)),
    )


def delete_gateways(questions: Questions, names: list[str]) -> None:
    for name in names:
        questions.delete_gateway(name)
        click.echo(f"gateway/{name} deleted")
