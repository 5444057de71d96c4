"""`covey fit`: what a model needs, read from its header alone: no controller, and nothing downloaded whole."""

from pathlib import Path

import click
from covey_agent.facts.host import observe_memory_bytes
from covey_api.companion import PROJECTOR_ARCHITECTURE, CompanionRole
from covey_api.engines import HOST_POOL, KvCacheType
from covey_api.model import Geometry, Model, VariantStatus
from covey_api.node import NodeReserve
from covey_api.text import escape_controls
from covey_api.units import parse_quantity
from covey_planner.text.fit import DEVICE_POOL, FitQuestion, fit_data, render_fit

from covey.commands.options import fleet_options_without, namespace_option
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode
from covey.headers import Found, read_source
from covey.tables import render_json


class Memory(click.ParamType[int]):
    """A quantity such as `24Gi`."""

    name = "SIZE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_quantity(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("what")
@click.option("--context", type=click.IntRange(1, 1 << 30), help="Window of one slot (default: the model's own).")
@click.option("--slots", type=click.IntRange(1, 64), default=4, show_default=True, help="Sequences at a time.")
@click.option("--kv-cache", type=click.Choice([kind.value for kind in KvCacheType]), default="F16", show_default=True)
@click.option("--memory", type=Memory(), help="Host memory for it (default: this machine's, less 1Gi).")
@click.option("--device-memory", type=Memory(), help="Memory of an accelerator that has its own.")
@click.option("--draft", help="A smaller model that drafts for it in the same engine: a source or a file.")
@click.option("--projector", help="What makes tokens of images for it (`mmproj`): a source or a file.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@namespace_option
@fleet_options_without("context")  # --context is a window here; the kubeconfig names the cluster
def fit(
    what: str,
    context: int | None,
    slots: int,
    kv_cache: str,
    memory: int | None,
    device_memory: int | None,
    draft: str | None,
    projector: str | None,
    output: str,
    namespace: str | None,
    where: Where,
) -> None:
    """Say what a model needs, in bytes, and the largest window.

    WHAT is a source (`hf://…`, `pypi://…`, `https://…`), the path of a GGUF file or of a folder with `config.json`, or
    `model/NAME` of the running fleet.
    """
    found = _of_model(where, namespace, what) if what.startswith("model/") else [(what, _read_model(what))]
    host = memory if memory is not None else _own_memory()
    pools = {HOST_POOL: host} | ({DEVICE_POOL: device_memory} if device_memory is not None else {})
    drafts = _read_model(draft).geometry if draft else None
    projectors = _read_projector(projector) if projector else None
    questions = [
        FitQuestion(
            name,
            each.geometry,
            context,
            slots,
            KvCacheType(kv_cache),
            pools,
            drafts or each.draft,
            projectors or each.projector,
            each.is_checkpoint,
        )
        for name, each in found
    ]
    for question in questions:
        if context is not None and context > question.geometry.context_tokens:
            own = question.geometry.context_tokens
            raise CommandError(
                f"`--context` must be at most {own}, the own window of '{question.name}'; got {context}",
                ExitCode.WRONG_USE,
            )
    if output == "json":
        answers = [fit_data(question) for question in questions]
        click.echo(render_json(answers[0] if len(answers) == 1 else answers))
        return
    click.echo(escape_controls("\n".join(render_fit(question) for question in questions)).rstrip("\n"))


def _read_model(what: str) -> Found:
    found = read_source(what)
    if found.geometry.architecture == PROJECTOR_ARCHITECTURE:
        message = (
            f"'{what}' must be a model; it is a projector (`mmproj`). Name it by `--projector`, and its model here"
        )
        raise CommandError(message, ExitCode.WRONG_USE)
    return found


def _read_projector(what: str) -> Geometry:
    found = read_source(what).geometry
    if found.architecture != PROJECTOR_ARCHITECTURE:
        message = f"`--projector` must name a projector (`mmproj`, architecture 'clip'); got '{found.architecture}'"
        raise CommandError(message, ExitCode.WRONG_USE)
    return found


def _own_memory() -> int:
    """What a Node with the default reserve would plan with on this machine."""
    total_bytes, _ = observe_memory_bytes(Path("/"))
    return max(0, total_bytes - parse_quantity(NodeReserve().memory))


def _of_model(where: Where, namespace: str | None, what: str) -> list[tuple[str, Found]]:
    """Each variant of a Model of the fleet whose header a node has read."""
    name = what.removeprefix("model/")
    with open_fleet(where) as fleet:
        model = Model.model_validate(fleet.objects.get_object(Model.PLURAL, namespace or fleet.namespace, name))
    if model.spec.geometry is not None:
        return [(what, Found(model.spec.geometry))]
    found = [
        (f"{what} variant '{one.name}'", _of_variant(one, geometry))
        for one in model.status.variants
        if (geometry := one.geometry)
    ]
    if not found:
        errors = "; ".join(f"variant '{one.name}': {one.error}" for one in model.status.variants if one.error)
        raise CommandError(f"no node has read the header of {what} yet. {errors}".strip())
    return found


def _of_variant(known: VariantStatus, geometry: Geometry) -> Found:
    beside = {each.role: each.geometry for each in known.companions}
    return Found(geometry, draft=beside.get(CompanionRole.DRAFT), projector=beside.get(CompanionRole.PROJECTOR))
