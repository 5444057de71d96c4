"""`covey plan` and `covey diff`: what documents would come to, and what they would change, before they are applied."""

import click
from covey_api.instance import Instance
from covey_api.kinds import Kind
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.model import Model
from covey_api.placement import Placement
from covey_api.text import escape_controls
from covey_controller.reconcile.described import plan_described
from pydantic import ValidationError

from covey.changes import diff_objects, render_changes
from covey.commands.options import fleet_options, kind_of, namespace_option
from covey.connect import Where, open_fleet
from covey.connection import Connection
from covey.described_fleet import read_described_fleet
from covey.documents import Documents, read_documents
from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject
from covey.running import list_running, render_running
from covey.tables import render_json, render_yaml


@click.command()
@click.option("-f", "--filename", multiple=True, help="File, folder, or `-` for standard input.")
@click.option("--fleet", "described", help="File with described Nodes: plan on them, with no fleet running.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@namespace_option
@fleet_options
def plan(filename: tuple[str, ...], described: str | None, output: str, namespace: str | None, where: Where) -> None:
    """Say what documents would come to; nothing is written.

    Without -f: what is about to happen now, and what waits. It is the controller's own planner on the fleet as it is,
    taking it that engines start.

    With --fleet no controller is asked: FILE holds Node documents that say what each machine is, in short
    (`machine: {memory: 64Gi, devices: [{compute: Cuda, memory: 24Gi}]}` beside `spec`; `limit` in place of a device's
    `memory` is what graphics on the processor's chip can fill of the machine's) or by the `status` that `covey
    get nodes -o yaml` prints. Models and Placements are in the same file or in -f. Exit code 1: a Placement is not
    served in full, or would not be once somebody asks.
    """
    documents = read_documents(filename)
    if described is not None:
        _plan_described(read_documents((described,)), documents, output, namespace or DEFAULT_NAMESPACE)
        return
    with open_fleet(where) as fleet:
        answer = _foresee(fleet, documents, namespace or fleet.namespace)
    click.echo(render_json(answer["data"]) if output == "json" else escape_controls(answer["text"]).rstrip("\n"))


def _plan_described(fleet: Documents, documents: Documents, output: str, namespace: str) -> None:
    read = read_described_fleet(fleet, documents, namespace)
    text, found = plan_described(read.nodes, read.documents)
    click.echo(render_json(found) if output == "json" else escape_controls(text).rstrip("\n"))
    if found["stalls"] or found["waits"] or not all(each["fits"] for each in found["sleeps"]):
        click.get_current_context().exit(ExitCode.FAILED)


def _foresee(fleet: Connection, documents: Documents, namespace: str) -> JsonObject:
    """The fleet checks the documents first: the same errors, at the same lines, as an apply."""
    if not documents.texts:
        return fleet.questions.foresee("", "")
    checked = fleet.objects.check_documents(documents, namespace)
    return fleet.questions.foresee("\n---\n".join(render_yaml(_written(item)) for item in checked), documents.name)


def _written(item: JsonObject) -> JsonObject:
    """What a person would write of an object: a cluster's objects carry more."""
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: item["metadata"][key] for key in kept if item["metadata"].get(key)}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata, "spec": item["spec"]}


@click.command()
@click.option("-f", "--filename", required=True, multiple=True, help="File, folder, or `-` for standard input.")
@namespace_option
@fleet_options
def diff(filename: tuple[str, ...], namespace: str | None, where: Where) -> None:
    """Show what documents would change, field by field.

    Running instances of another revision are named too. So what was applied and never came to run shows: the instances
    that serve are of an older revision then.

    Exit codes as kubectl's: 0 nothing, 1 something differs (a rollout that is under way does), above 1 it could not be
    told.
    """
    try:
        documents = read_documents(filename)
        with open_fleet(where) as fleet:
            blocks = _differences(fleet, documents, namespace or fleet.namespace)
    except CommandError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE if error.code is ExitCode.FAILED else error.code) from None
    if blocks:
        click.echo("\n\n".join(blocks))
        click.get_current_context().exit(ExitCode.FAILED)


def _differences(fleet: Connection, documents: Documents, namespace: str) -> list[str]:
    blocks: list[str] = []
    all_wished = fleet.objects.check_documents(documents, namespace)
    for wished in all_wished:
        live = _find(fleet, wished)
        name = f"{kind_of(wished['kind']).SINGULAR}/{wished['metadata']['name']}"
        asked = wished if live is not None else _without_defaults(wished)
        block = render_changes(name, diff_objects(live, asked), is_new=live is None)
        blocks += [escape_controls(block)] if block else []
    return blocks + _running(fleet, all_wished)


def _running(fleet: Connection, wished: list[JsonObject]) -> list[str]:
    """Nothing is asked for where the documents have no bearing on what runs."""
    wishes = [item for item in _parsed(wished) if isinstance(item, (Model, Placement))]
    blocks: list[str] = []
    for namespace in sorted({item.metadata.namespace for item in wishes}):
        here = [item for item in wishes if item.metadata.namespace == namespace]
        instances = _parsed(fleet.objects.list_objects(Instance.PLURAL, namespace))
        if not instances:
            continue
        live = [
            item for kind in (Model, Placement) for item in _parsed(fleet.objects.list_objects(kind.PLURAL, namespace))
        ]
        found = list_running(here, live, [item for item in instances if isinstance(item, Instance)])
        blocks += [escape_controls(render_running(name, running)) for name, running in found.items()]
    return blocks


def _parsed(items: list[JsonObject]) -> list[Kind]:
    found: list[Kind] = []
    for item in items:
        kind = kind_of(item["kind"])
        try:
            found.append(kind.model_validate(item))
        except ValidationError:
            name = f"{kind.SINGULAR}/{item['metadata']['name']}"
            click.echo(f"{name}: what runs is not compared with it: this version of covey can't read it", err=True)
    return found


def _without_defaults(wished: JsonObject) -> JsonObject:
    """What its author asked for: of a new object each field that has its default is no news. Whole, where this
    version can't read it."""
    try:
        parsed = kind_of(wished["kind"]).model_validate(wished)
    except ValidationError:
        return wished
    return {**wished, "spec": parsed.model_dump(mode="json", by_alias=True, exclude_defaults=True).get("spec", {})}


def _find(fleet: Connection, wished: JsonObject) -> JsonObject | None:
    metadata = wished["metadata"]
    try:
        return fleet.objects.get_object(
            kind_of(wished["kind"]).PLURAL, str(metadata.get("namespace", "")), metadata["name"]
        )
    except CommandError as error:
        if error.code is ExitCode.NOTHING_MATCHED:
            return None
        raise
