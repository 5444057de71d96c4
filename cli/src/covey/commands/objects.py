"""Commands on objects, with kubectl's nouns and flags: get, describe, why, apply, delete."""

import signal

import click
from covey_api.kinds import Kind
from covey_api.text import escape_controls

from covey.commands.gateways import delete_gateways, is_gateway, parse_gateways, print_gateways
from covey.commands.options import (
    author_option,
    fleet_options,
    kind_of,
    namespace_of,
    namespace_option,
    parse_targets,
    print_results,
)
from covey.connect import Where, open_fleet
from covey.documents import read_documents
from covey.errors import CommandError, ExitCode
from covey.ports import JsonObject, Objects
from covey.tables import render_describe, render_json, render_objects, render_yaml

ALL_KINDS = ("models", "placements", "nodes", "instances")


@click.command()
@click.argument("kinds")
@click.argument("names", nargs=-1)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of every namespace.")
@click.option("-o", "--output", type=click.Choice(["wide", "yaml", "json", "name"]), help="How to print.")
@click.option("-w", "--watch", is_flag=True, help="Print again what changes, until interrupted.")
@fleet_options
def get(
    kinds: str,
    names: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    output: str | None,
    watch: bool,
    where: Where,
) -> None:
    """List objects of one kind or of several.

    KINDS is a kind, or several with commas: `models,placements,nodes,instances`. `all` is these four.

    `covey get source` shows what the source holds and what of it runs, `covey get gateways` who may follow the fleet as
    a gateway.
    """
    with open_fleet(where) as fleet:
        if kinds == "source":
            _print_source(fleet.questions.get_source(), output)
            return
        if is_gateway(kinds):
            print_gateways(fleet.questions.list_gateways(), names, output)
            return
        place = None if all_namespaces else namespace or fleet.namespace
        if "/" in kinds:
            targets = parse_targets((kinds, *names))
            wanted = {name for _, name in targets}
            chosen = list(dict.fromkeys(kind for kind, _ in targets))
        else:
            words = ALL_KINDS if kinds == "all" else kinds.split(",")
            wanted, chosen = set(names), [kind_of(word) for word in words if word]
        if watch:
            if output in ("yaml", "json", "name"):
                raise CommandError(f"--watch prints tables; it can't print '{output}'", ExitCode.WRONG_USE)
            _watch_objects(fleet.objects, chosen, wanted, place, wide=output == "wide")
            return
        found: list[tuple[type[Kind], list[JsonObject]]] = []
        for kind in chosen:
            items = fleet.objects.list_objects(kind.PLURAL, namespace_of(kind, place or "") or None)
            found.append((kind, [item for item in items if not wanted or item["metadata"]["name"] in wanted]))
    missing = wanted - {item["metadata"]["name"] for _, items in found for item in items}
    _print_objects(found, output, all_namespaces, names=wanted)
    if missing:
        inside = f" in namespace '{place}'" if place else ""
        names_text = ", ".join(f"'{name}'" for name in sorted(missing))
        raise CommandError(f"no {'/'.join(k.SINGULAR for k in chosen)} {names_text}{inside}", ExitCode.NOTHING_MATCHED)


def _print_objects(
    found: list[tuple[type[Kind], list[JsonObject]]], output: str | None, all_namespaces: bool, names: set[str]
) -> None:
    everything = [item for _, items in found for item in items]
    if output in ("json", "yaml"):
        is_one = len(names) == 1 and len(found) == 1 and len(everything) == 1
        listed = everything[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": everything}
        click.echo(render_json(listed) if output == "json" else render_yaml(listed))
        return
    blocks: list[str] = []
    for kind, items in found:
        if output == "name":
            blocks += [f"{kind.SINGULAR}/{item['metadata']['name']}" for item in items]
        elif items:
            table = render_objects(
                kind, items, wide=output == "wide", all_namespaces=all_namespaces, prefix=len(found) > 1
            )
            blocks.append(table)
        elif not names:
            click.echo(f"No {kind.PLURAL} found.", err=True)
    click.echo(("\n" if output == "name" else "\n\n").join(blocks)) if blocks else None


def _print_source(source: JsonObject, output: str | None) -> None:
    if output in ("json", "yaml"):
        click.echo(render_json(source) if output == "json" else render_yaml(source))
        return
    click.echo(f"Source:   {source['source']}")
    what = "commit" if source["source"].startswith("git+") else "set"
    click.echo(f"Running:  {what} {source['applied'] or '<none>'}")
    if source["wanted"] != source["applied"]:
        click.echo(f"{'Refused: ' if source.get('errors') else 'Wanted:  '} {what} {source['wanted']}")
    for error in source.get("errors", ()):
        click.echo(escape_controls(f"  {error['file']}:{error['line']}: {error['message']}"))
    for notice in source.get("notices", ()):
        click.echo(escape_controls(f"Note:     {notice}"))


def _watch_objects(
    objects: Objects, kinds: list[type[Kind]], names: set[str], namespace: str | None, *, wide: bool
) -> None:
    # Ctrl-C ends the process as the kernel does it, and kubectl's proxy ends behind it. Python's own handler would run
    # only after the next line of the stream when the signal comes just before the read: up to a minute later.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    headed = False
    seen: dict[tuple[str, str, str], JsonObject] = {}  # sets the widths, so that rows stay under their heads
    by_name = {kind.__name__: kind for kind in kinds}
    for change in objects.watch_objects([kind.PLURAL for kind in kinds], namespace):
        item = change.get("object")
        if item is None or (names and item["metadata"]["name"] not in names):
            continue
        kind = by_name[item["kind"]]
        key = (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        seen.pop(key, None)
        seen[key] = item
        items = [one for (of_kind, _, _), one in seen.items() if of_kind == item["kind"]]
        table = render_objects(kind, items, wide=wide, all_namespaces=namespace is None, prefix=len(kinds) > 1)
        head, *_, row = table.splitlines()
        click.echo(row if headed and len(kinds) == 1 else f"{head}\n{row}")
        headed = True


@click.command()
@click.argument("target", nargs=-1, required=True)
@namespace_option
@fleet_options
def describe(target: tuple[str, ...], namespace: str | None, where: Where) -> None:
    """Show objects whole, with conditions and events.

    TARGET is KIND NAME, or KIND/NAME.
    """
    targets = parse_targets(target)
    with open_fleet(where) as fleet:
        blocks: list[str] = []
        for kind, name in targets:
            place = namespace_of(kind, namespace or fleet.namespace)
            item = fleet.objects.get_object(kind.PLURAL, place, name)
            blocks.append(render_describe(kind, item, _list_events(fleet.objects, kind, place, name)))
    click.echo("\n\n".join(blocks))


def _list_events(objects: Objects, kind: type[Kind], namespace: str, name: str) -> list[JsonObject]:
    """Who may see an object may not always see its events: the rest is worth showing."""
    try:
        return objects.list_events(kind.PLURAL, namespace, name)
    except CommandError as error:
        if error.code is not ExitCode.FAILED:
            raise
        click.echo(f"covey: without events: {escape_controls(str(error))}", err=True)
        return []


@click.command()
@click.argument("target", nargs=-1, required=True)
@namespace_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@fleet_options
def why(target: tuple[str, ...], namespace: str | None, output: str, where: Where) -> None:
    """Explain a decision, per node and in bytes.

    TARGET is KIND NAME, or KIND/NAME.
    """
    targets = parse_targets(target)
    with open_fleet(where) as fleet:
        answers = [
            fleet.questions.explain(kind.PLURAL, namespace_of(kind, namespace or fleet.namespace), name)
            for kind, name in targets
        ]
    for answer in answers:
        click.echo(render_json(answer["data"]) if output == "json" else escape_controls(answer["text"]).rstrip("\n"))


@click.command()
@click.option("-f", "--filename", required=True, multiple=True, help="File, folder, or `-` for standard input.")
@namespace_option
@author_option
@fleet_options
def apply(filename: tuple[str, ...], namespace: str | None, author: str, where: Where) -> None:
    """Write documents to the fleet.

    They are checked as one set, and nothing is written unless all of them are valid. Without Kubernetes they become
    files of the source; where that is a git repository, a commit.
    """
    documents = read_documents(filename)
    with open_fleet(where) as fleet:
        print_results(fleet.objects.apply_documents(documents, namespace or fleet.namespace, author))


@click.command()
@click.argument("target", nargs=-1)
@click.option("-f", "--filename", multiple=True, help="Delete the objects that these files name.")
@namespace_option
@author_option
@fleet_options
def delete(
    target: tuple[str, ...], filename: tuple[str, ...], namespace: str | None, author: str, where: Where
) -> None:
    """Remove objects.

    TARGET is KIND NAME, or KIND/NAME; or give -f FILE.

    `covey delete gateway/NAME` refuses the certificates of a gateway: it is cut off at once, and only a new join token
    lets it in again.
    """
    if bool(target) == bool(filename):
        raise CommandError("give either objects or -f FILE", ExitCode.WRONG_USE)
    if target and is_gateway(target[0]):
        gateways = parse_gateways(target)
        with open_fleet(where) as fleet:
            delete_gateways(fleet.questions, gateways)
        return
    targets = [] if filename else parse_targets(target)
    text = read_documents(filename).joined
    with open_fleet(where) as fleet:
        place = namespace or fleet.namespace
        keys = _keys_of(text, place) if filename else [_key(kind, place, name) for kind, name in targets]
        print_results(fleet.objects.delete_keys(keys, author))


def _key(kind: type[Kind], namespace: str, name: str) -> JsonObject:
    return {"kind": kind.__name__, "namespace": namespace_of(kind, namespace), "name": name}


def _keys_of(text: str, namespace: str) -> list[JsonObject]:
    import yaml  # only here: most commands never parse YAML

    try:
        documents = [document for document in yaml.safe_load_all(text) if document]
        return [
            _key(kind_of(d["kind"]), d["metadata"].get("namespace") or namespace, d["metadata"]["name"])
            for d in documents
        ]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise CommandError(f"cannot tell which objects the documents name: {error}", ExitCode.WRONG_USE) from error
