"""`covey fit`: what a model needs, read from its header alone: no controller, and nothing downloaded whole."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from covey_agent.facts.host import observe_memory_bytes
from covey_api.companion import PROJECTOR_ARCHITECTURE, CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Lane, LaneState
from covey_api.fleet import Fleet
from covey_api.model import Geometry, Model
from covey_api.node import NodeReserve
from covey_api.text import escape_controls
from covey_api.units import parse_quantity
from covey_controller.reconcile.wanted import view_variant
from covey_planner.fit.reserves import reserve_bytes
from covey_planner.text.fit import DEVICE_POOL, FitQuestion, fit_data, own_window, render_fit
from covey_planner.types import VariantView

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


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is the same of every artifact that is asked about."""

    context_tokens: int | None
    slots: int
    kv_cache_type: KvCacheType | None
    memory_bytes: Mapping[str, int]
    metal_bytes: int | None
    draft: Geometry | None
    projector: Geometry | None


@click.command()
@click.argument("what")
@click.option("--context", type=click.IntRange(1, 1 << 30), help="Window of one slot (default: the model's own).")
@click.option("--slots", type=click.IntRange(1, 64), default=4, show_default=True, help="Sequences at a time.")
@click.option(
    "--kv-cache", type=click.Choice([kind.value for kind in KvCacheType]), help="Default: the Fleet's, else F16."
)
@click.option(
    "--memory",
    type=Memory(),
    help="Host memory for it (default: this machine's, less 1Gi, on Apple Silicon less a quarter).",
)
@click.option(
    "--device-memory",
    type=Memory(),
    help="Memory of an accelerator that has its own, of which a tenth, at least 512Mi, is left.",
)
@click.option("--draft", help="A smaller model that drafts for it in the same engine: a source or a file.")
@click.option("--projector", help="What makes tokens of images for it (`mmproj`): a source or a file.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@namespace_option
@fleet_options_without("context")  # --context is a window here; the kubeconfig names the cluster
def fit(
    what: str,
    context: int | None,
    slots: int,
    kv_cache: str | None,
    memory: int | None,
    device_memory: int | None,
    draft: str | None,
    projector: str | None,
    output: str,
    namespace: str | None,
    where: Where,
) -> None:
    """Say what a model needs, in bytes, and the largest window.

    WHAT is a source (`hf://…`, `pypi://…`, `https://…`, or `store://…` of what this machine has), the path of a GGUF
    file or of a folder with `config.json`, or `model/NAME` of the running fleet.
    """
    asked = _Asked(
        context,
        slots,
        KvCacheType(kv_cache) if kv_cache else None,
        {HOST_POOL: memory if memory is not None else _own_memory(Compute.CPU)}
        | ({DEVICE_POOL: _left(DEVICE_POOL, device_memory, Compute.CUDA)} if device_memory is not None else {}),
        None if memory is not None else _own_memory(Compute.METAL),
        _read_model(draft).geometry if draft else None,
        _read_projector(projector) if projector else None,
    )
    questions = _of_model(where, namespace, what, asked) if what.startswith("model/") else [_of_source(what, asked)]
    for question in questions:
        own = own_window(question)
        if context is not None and context > own:
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


def _own_memory(compute: Compute) -> int:
    """What a Node with the default reserve would plan with on this machine, if it had such a lane."""
    total_bytes, _ = observe_memory_bytes(Path("/"))
    return _left(HOST_POOL, total_bytes, Compute.METAL if sys.platform == "darwin" else compute)


def _left(pool: str, total_bytes: int, compute: Compute) -> int:
    lane = Lane(engine=EngineName.LLAMA_SERVER, compute=compute, state=LaneState.INSTALLABLE, pool=pool)
    declared = parse_quantity(NodeReserve().memory)
    return max(0, total_bytes - reserve_bytes(pool, total_bytes, declared, (lane,)))


def _of_source(what: str, asked: _Asked) -> FitQuestion:
    found = _read_model(what)
    return FitQuestion(
        what,
        found.geometry,
        asked.context_tokens,
        asked.slots,
        asked.kv_cache_type or KvCacheType.F16,
        asked.memory_bytes,
        asked.draft,
        asked.projector,
        engines=_engines_of(found),
        metal_bytes=asked.metal_bytes,
    )


def _engines_of(found: Found) -> tuple[EngineName, ...]:
    """That load such files. What mlx-lm packed is of less than a byte and a half for each parameter, and vLLM reads
    none of it."""
    if not found.is_checkpoint:
        return (EngineName.LLAMA_SERVER, EngineName.LLAMA_CPP)
    geometry = found.geometry
    is_packed = 2 * geometry.weights_bytes < 3 * geometry.parameter_count and not geometry.unpacked_bytes
    return (EngineName.MLX,) if is_packed else (EngineName.MLX, EngineName.VLLM)


def _of_model(where: Where, namespace: str | None, what: str, asked: _Asked) -> list[FitQuestion]:
    """Each variant of a Model of the fleet that is known, with all that the planner would count."""
    name = what.removeprefix("model/")
    with open_fleet(where) as fleet:
        model = Model.model_validate(fleet.objects.get_object(Model.PLURAL, namespace or fleet.namespace, name))
        kept = [Fleet.model_validate(each) for each in fleet.objects.list_objects(Fleet.PLURAL)]
    default_type = kept[0].spec.kv_cache.type if kept else KvCacheType.F16
    views = [view_variant(model, each, tuple(EngineName)) for each in model.spec.variants]
    if not any(view.geometry for view in views):
        errors = "; ".join(f"variant '{view.name}': {view.error}" for view in views if view.error)
        raise CommandError(f"no node has read the header of {what} yet. {errors}".strip())
    return [
        _of_variant(f"{what} variant '{view.name}'", model, view, view.geometry, asked, default_type)
        for view in views
        if view.geometry
    ]


def _of_variant(
    name: str, model: Model, view: VariantView, geometry: Geometry, asked: _Asked, default_type: KvCacheType
) -> FitQuestion:
    beside = {each.role: each.geometry for each in view.companions}
    return FitQuestion(
        name,
        geometry,
        asked.context_tokens,
        asked.slots,
        asked.kv_cache_type or default_type,
        asked.memory_bytes,
        asked.draft or beside.get(CompanionRole.DRAFT),
        asked.projector or beside.get(CompanionRole.PROJECTOR),
        engines=view.engines,
        model_context_tokens=model.spec.context_tokens,
        workspace_bytes=parse_quantity(model.spec.memory.workspace),
        calibrations=view.calibrations,
        task=model.spec.tasks[0],
        metal_bytes=asked.metal_bytes,
    )
