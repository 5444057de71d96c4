"""`covey fit model/NAME`: held against what the planner reserves for the same Model."""

import importlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from click.testing import CliRunner
from covey.connect import Where
from covey.errors import CommandError
from covey.ports import JsonObject
from covey_api.companion import Companion, CompanionRole
from covey_api.engines import ArtifactFormat, Compute, EngineName, KvCacheType
from covey_api.fleet import Fleet, FleetKvCache, FleetSpec
from covey_api.meta import ObjectMeta
from covey_api.model import (
    CompanionStatus,
    Model,
    ModelMemory,
    ModelStatus,
    Variant,
    VariantCalibration,
    VariantStatus,
)
from covey_controller.reconcile.wanted import render_wish
from covey_planner.choice.ways import Question
from kit import builders

# The package's attribute of this name is the command itself.
fit_module = importlib.import_module("covey.commands.fit")


@dataclass(frozen=True)
class Shelf:
    """A fleet that only keeps objects."""

    model: Model
    fleets: tuple[Fleet, ...]
    namespace: str = "default"

    @property
    def objects(self) -> "Shelf":
        return self

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        assert (plural, namespace, name) == ("models", "default", self.model.metadata.name)
        return self.model.model_dump(mode="json", by_alias=True)

    def list_objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]:
        return [each.model_dump(mode="json", by_alias=True) for each in self.fleets if plural == "fleets"]


def variant(name: str, kind: ArtifactFormat, *engines: EngineName, **more: Companion) -> Variant:
    return Variant(name=name, format=kind, source=f"file:///{name}", engines=engines, draft=more.get("draft"))


def of_fleet(monkeypatch: pytest.MonkeyPatch, model: Model, *fleets: Fleet, **more: str) -> list[JsonObject]:
    @contextmanager
    def opened(where: Where) -> Generator[Shelf]:
        yield Shelf(model, fleets)

    monkeypatch.setattr(fit_module, "open_fleet", opened)
    flags = [word for name, value in more.items() for word in (f"--{name}", value)]
    result = CliRunner().invoke(fit_module.fit, [f"model/{model.metadata.name}", "-o", "json", *flags])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    return [answer] if "lanes" in answer else answer


def reserved(model: Model, fleet: Fleet, slots: int) -> list[list[JsonObject]]:
    """What the planner would reserve for each way and lane, at the window that `covey fit` tells."""
    placement = builders.placement(model=model.metadata.name, concurrency=slots)
    question = Question(render_wish(placement, model, fleet, (), ()))
    lanes = [
        builders.lane(engine=engine, compute=compute, digest="a" * 64)
        for engine, compute in (
            (EngineName.LLAMA_SERVER, Compute.CPU),
            (EngineName.LLAMA_CPP, Compute.CPU),
            (EngineName.MLX, Compute.METAL),
        )
    ]
    return [
        [{"name": way.variant, "engine": lane.engine, "total": formula.total_bytes(way.span.most)} for formula in found]
        for way in question.ways
        for lane in lanes
        if way.runs_on(lane) and (found := question.price(way, lane).formulas)
    ]


def test_model_of_a_fleet_is_told_what_the_planner_will_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = variant("gguf", ArtifactFormat.GGUF, EngineName.LLAMA_SERVER, EngineName.LLAMA_CPP)
    mlx = variant("mlx", ArtifactFormat.MLX, EngineName.MLX)
    scale = VariantCalibration(engine=EngineName.MLX, compute=Compute.METAL, percent=120)
    status = ModelStatus(
        variants=(
            VariantStatus(name="gguf", source=gguf.source, artifact=builders.artifact(), geometry=builders.geometry()),
            VariantStatus(
                name="mlx",
                source=mlx.source,
                artifact=builders.artifact(),
                geometry=builders.geometry(),
                calibrations=(scale,),
            ),
        )
    )
    model = builders.model(variants=(gguf, mlx), context_tokens=4096, memory=ModelMemory(workspace="64Mi")).model_copy(
        update={"status": status}
    )
    fleet = Fleet(metadata=ObjectMeta(name="default"), spec=FleetSpec(kv_cache=FleetKvCache(type=KvCacheType.Q8_0)))
    answers = of_fleet(monkeypatch, model, fleet, slots="3")
    assert [answer["kvCacheType"] for answer in answers] == ["Q8_0", "Q8_0"], "the Fleet's"
    assert [answer["contextTokens"] for answer in answers] == [4096, 4096], "the Model's cap"
    told = [
        [{"name": name, "engine": lane["engine"], "total": pool["totalBytes"]} for pool in lane["pools"]]
        for name, answer in zip(("gguf", "mlx"), answers, strict=True)
        for lane in answer["lanes"]
        if lane["compute"] == ("Metal" if name == "mlx" else "Cpu")
    ]
    assert told == reserved(model, fleet, 3)
    assert answers[1]["lanes"][0]["pools"][0]["calibrationPercent"] == 120
    with pytest.raises(CommandError, match="`--context` must be at most 4096"):
        of_fleet(monkeypatch, model, fleet, context="8192")


def test_declared_geometry_keeps_the_companions_that_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Companion(source="file:///d.gguf")
    gguf = variant("gguf", ArtifactFormat.GGUF, EngineName.LLAMA_SERVER, draft=draft)
    read = CompanionStatus(
        role=CompanionRole.DRAFT, source=draft.source, artifact=builders.artifact(), geometry=builders.geometry()
    )
    status = VariantStatus(name="gguf", source=gguf.source, artifact=builders.artifact(), companions=(read,))
    model = builders.model(variants=(gguf,), geometry=builders.geometry(layer_count=12, kv_head_counts=(3,) * 12))
    model = model.model_copy(update={"status": ModelStatus(variants=(status,))})
    (answer,) = of_fleet(monkeypatch, model)
    assert answer["lanes"][0]["draftPools"][0]["totalBytes"] > 0
    assert answer["kvCacheBytes"] == 4 * 8192 * 12 * 3 * (64 + 64) * 2, "by the declared layers"
