"""`covey export`: the running fleet as documents."""

import click

from covey.commands.options import fleet_options
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode
from covey.export import EXPORTED_KINDS, JsonObject, render_documents
from covey.tables import render_json, render_yaml


@click.command()
@click.option("-n", "--namespace", help="Objects of this namespace only, without those of the whole cluster.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@fleet_options
def export(namespace: str | None, output: str, where: Where) -> None:
    """Print the running fleet as documents.

    Applied to an empty source they make the same objects; applied to this fleet they change nothing. Status, Instances
    and secrets are not in them, nor is what equals a default.
    """
    with open_fleet(where) as fleet:
        documents: list[JsonObject] = []
        for kind in EXPORTED_KINDS:
            if kind.NAMESPACED or namespace is None:
                documents += render_documents(kind, fleet.objects.list_objects(kind.PLURAL, namespace))
    if not documents:
        raise CommandError("there is nothing to export: no object is declared", ExitCode.NOTHING_MATCHED)
    if output == "json":
        click.echo(render_json({"apiVersion": "v1", "kind": "List", "items": documents}))
        return
    click.echo("---\n".join(f"{render_yaml(document)}\n" for document in documents), nl=False)
