"""Keys of clients and tokens of machines. Each secret is printed once and stored hashed."""

import re

import click
from covey_api.access_key import AccessKey
from covey_api.meta import NAME_PATTERN

from covey.commands.options import fleet_options, namespace_option
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode
from covey.paths import TOKEN_SEPARATOR


@click.group()
def key() -> None:
    """Keys with which clients call the gateway."""


@key.command("create")
@click.argument("name")
@click.option("--expiry", help="UTC time after which it is refused, e.g. 2027-01-31T00:00:00Z.")
@namespace_option
@fleet_options
def create_key(name: str, expiry: str | None, namespace: str | None, where: Where) -> None:
    """Make a key; it is shown once. What is stored is an AccessKey with its hash."""
    if not re.fullmatch(NAME_PATTERN, name):
        wanted = "lowercase letters, digits and '-', with a letter or digit at both ends"
        raise CommandError(f"the name of a key must be {wanted}; got '{name}'", ExitCode.WRONG_USE)
    with open_fleet(where) as fleet:
        click.echo(fleet.objects.create_key(name, namespace or fleet.namespace, expiry))


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
