"""Keys of clients and tokens of machines. Each secret is printed once and stored hashed."""

import re
from datetime import UTC, datetime
from typing import Any

import click
from covey_api.access_key import AccessKey
from covey_api.meta import NAME_PATTERN
from pydantic.alias_generators import to_camel

from covey.commands.options import fleet_options, namespace_option
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode
from covey.paths import TOKEN_SEPARATOR
from covey.tables import render_json, render_table


@click.group()
def key() -> None:
    """Keys with which clients call the gateway."""


@key.command("create")
@click.argument("name")
@click.option("--expiry", help="UTC time after which it is refused, e.g. 2027-01-31T00:00:00Z.")
@click.option("--model", "models", multiple=True, help="A Model that it may ask for; repeatable (default: all).")
@click.option("--requests-per-minute", type=click.IntRange(1), help="Requests that may begin within a minute.")
@click.option("--tokens-per-minute", type=click.IntRange(1), help="Tokens of prompts and answers within a minute.")
@click.option("--tokens-per-day", type=click.IntRange(1), help="The same within a day, UTC.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at a time.")
@click.option("--priority", type=int, help="Whose requests go first where they wait: higher ones; 0 unless given.")
@namespace_option
@fleet_options
def create_key(name: str, namespace: str | None, where: Where, **limits: str | int | tuple[str, ...] | None) -> None:
    """Make a key; it is shown once. What is stored is an AccessKey with its hash."""
    if not re.fullmatch(NAME_PATTERN, name):
        wanted = "lowercase letters, digits and '-', with a letter or digit at both ends"
        raise CommandError(f"the name of a key must be {wanted}; got '{name}'", ExitCode.WRONG_USE)
    spec = {to_camel(field): value for field, value in limits.items() if value}
    with open_fleet(where) as fleet:
        click.echo(fleet.objects.create_key(name, namespace or fleet.namespace, spec))


_USAGE_HEAD = ("NAME", "REQUESTS", "ESTIMATED", "PROMPT", "CACHED", "COMPLETION", "TODAY", "OF", "AS OF")


@key.command("usage")
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Choice(["json"]), help="As JSON.")
@namespace_option
@fleet_options
def show_usage(name: str | None, output: str | None, namespace: str | None, where: Where) -> None:
    """What keys have used: requests, and tokens as the engines counted them; written once a minute.

    ESTIMATED are requests that ended early: their tokens are estimates. TODAY are tokens of the day in UTC, OF its
    limit.
    """
    with open_fleet(where) as fleet:
        space = namespace or fleet.namespace
        found = fleet.objects.list_objects(AccessKey.PLURAL, space)
    chosen = [AccessKey.model_validate(each) for each in found if name in (None, each["metadata"]["name"])]
    if name is not None and not chosen:
        raise CommandError(f"there is no accesskey '{name}' in namespace '{space}'", ExitCode.NOTHING_MATCHED)
    if output == "json":
        click.echo(render_json({"items": [{"name": each.metadata.name} | _wire_usage(each) for each in chosen]}))
    else:
        click.echo(render_table(_USAGE_HEAD, [_render_usage(each) for each in chosen]))


def _wire_usage(key: AccessKey) -> dict[str, Any]:
    usage = key.status.usage.to_wire()
    for name in ("counted", "hash"):
        usage.pop(name, None)
    return usage


def _render_usage(key: AccessKey) -> list[str]:
    usage = key.status.usage
    is_today = usage.day == datetime.now(UTC).strftime("%Y-%m-%d")
    total, limit = usage.total, key.spec.tokens_per_day
    counts = (total.requests, total.estimated_requests, total.prompt_tokens, total.cached_tokens)
    return [
        key.metadata.name,
        *map(str, (*counts, total.completion_tokens, usage.today.tokens if is_today else 0)),
        "" if limit is None else str(limit),
        usage.counted_at,
    ]


@key.command("delete")
@click.argument("name")
@namespace_option
@fleet_options
def delete_key(name: str, namespace: str | None, where: Where) -> None:
    """Remove a key; it stops working within two seconds."""
    with open_fleet(where) as fleet:
        fleet.objects.delete_keys(
            [{"kind": AccessKey.__name__, "namespace": namespace or fleet.namespace, "name": name}]
        )
    click.echo(f"accesskey/{name} deleted")


@click.group()
def token() -> None:
    """Tokens with which machines join the fleet."""


@token.command("create")
@click.option("--role", type=click.Choice(["agent", "gateway", "machine"]), default="agent", show_default=True)
@click.option("--uses", type=click.IntRange(1, 1000), default=1, show_default=True, help="How often it may be used.")
@click.option(
    "--ttl",
    "ttl_seconds",
    type=click.IntRange(60, 7 * 86_400),
    default=3600,
    show_default=True,
    help="Seconds until it can't be used any more.",
)
@fleet_options
def create_token(role: str, uses: int, ttl_seconds: int, where: Where) -> None:
    """Make a join token; it is shown once.

    One for a machine lets an agent and a gateway join, as `covey join` does: two tokens in one.
    """
    roles = ("agent", "gateway") if role == "machine" else (role,)
    with open_fleet(where) as fleet:
        tokens = [fleet.questions.create_token(each, uses, ttl_seconds) for each in roles]
    click.echo(TOKEN_SEPARATOR.join(tokens))
