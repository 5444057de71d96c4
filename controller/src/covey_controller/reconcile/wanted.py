"""What a Placement wishes: how many replicas, of which revision, and the Wish that the planner is asked with."""

from collections import Counter
from collections.abc import Collection, Iterable

from covey_api.companion import CompanionRole
from covey_api.engines import EngineName, KvCacheType
from covey_api.fleet import Fleet
from covey_api.instance import Instance
from covey_api.kinds import ObjectKey
from covey_api.model import Model, ResolvedArtifact, Variant, VariantStatus
from covey_api.placement import Failure, Placement, ShapeType, ShapeWish
from covey_api.units import parse_quantity
from covey_planner.fit.calibration import formula_of
from covey_planner.types import Barred, CompanionView, ShapeKind, Spread, VariantView, Wish

from covey_controller.reconcile.companions import find_companion
from covey_controller.reconcile.world import Scaled


def wanted_replicas(placement: Placement, scaled: Scaled | None) -> int:
    """Replicas wished; none while suspended or being deleted. `scaled`: how many are asked for, if that decides."""
    if placement.spec.suspend or placement.metadata.deletion_timestamp is not None:
        return 0
    if placement.spec.scaling is None:
        return placement.spec.replicas
    return placement.spec.scaling.min if scaled is None else scaled.count


def model_key(placement_key: ObjectKey, placement: Placement) -> ObjectKey:
    return ObjectKey("Model", placement_key.namespace, placement.spec.model_ref.name)


def fresh_status(model: Model, variant: Variant) -> VariantStatus | None:
    """What a node read of this variant; None when it was read from another source or digest, or never."""
    for status in model.status.variants:
        if status.name != variant.name or status.source != variant.source:
            continue
        found = status.artifact
        return None if found and variant.sha256 not in (None, found.sha256) else status
    return None


def view_variant(
    model: Model, variant: Variant, offered: Collection[EngineName], held: Collection[str] | None = None
) -> VariantView:
    """A variant for the planner. `spec.geometry` beats what the header says; the artifact is always a node's answer."""
    status = fresh_status(model, variant)
    artifact = status.artifact if status else None
    geometry = model.spec.geometry or (status.geometry if status else None)
    error = status.error if status and artifact is None else ""
    known = {
        (each.engine, each.compute): each.percent
        for each in (status.calibrations if status else ())
        if each.formula == formula_of(each.engine)
    }
    is_offered = any(engine in offered for engine in variant.engines)
    beside = tuple(_view_companion(model, variant, role) for role, _ in variant.companions)
    files = [artifact, *(each.artifact for each in beside)]
    return VariantView(
        variant.name,
        variant.format,
        variant.engines,
        geometry,
        artifact,
        error,
        known,
        is_offered,
        beside,
        is_held=held is None or all(_is_held(each, held) for each in files if each is not None),
        runtime=variant.runtime,
    )


def _is_held(artifact: ResolvedArtifact, held: Collection[str]) -> bool:
    """What is a file of each machine's own is looked for there."""
    return artifact.digest in held or artifact.source.startswith("file:")


def _view_companion(model: Model, variant: Variant, role: CompanionRole) -> CompanionView:
    found = find_companion(model, variant, role)
    return (
        CompanionView(role, found.geometry, found.artifact, found.error) if found else CompanionView(role, None, None)
    )


def render_wish(
    placement: Placement,
    model: Model,
    fleet: Fleet | None,
    failed: Iterable[Barred],
    running: Iterable[Instance],
    offered: Collection[EngineName] = tuple(EngineName),
    held: Collection[str] | None = None,
) -> Wish:
    """The Placement with the Model's and the Fleet's defaults filled in.

    `running`: its Instances with goal Run. `offered`: engines of which some node has a lane.
    `held`: digests of files that some node has, where it matters.
    """
    spec = placement.spec
    default_type = fleet.spec.kv_cache.type if fleet else KvCacheType.F16
    return Wish(
        placement=placement.metadata.name,
        model=model.metadata.name,
        variants=tuple(view_variant(model, variant, offered, held) for variant in model.spec.variants),
        engines=spec.engines,
        selector=spec.nodes.selector,
        include=frozenset(spec.nodes.include),
        exclude=frozenset(spec.nodes.exclude),
        failed=frozenset(failed),
        context_tokens=spec.context.tokens,
        min_context_tokens=spec.context.min_tokens,
        model_context_tokens=model.spec.context_tokens,
        slots=spec.concurrency,
        kv_cache_type=spec.kv_cache.type or default_type,
        workspace_bytes=parse_quantity(model.spec.memory.workspace),
        placed=dict(Counter(node for instance in running for node in {m.node: None for m in instance.spec.members})),
        tolerations=spec.nodes.tolerations,
        expected_requests=max(spec.concurrency, spec.scaling.target if spec.scaling else 0),
        task=model.spec.tasks[0],
        spread=render_spread(spec.shape),
        computes=spec.nodes.computes,
    )


def render_spread(shape: ShapeWish) -> Spread | None:
    if shape.type is ShapeType.SINGLE:
        return None
    if shape.type is ShapeType.AUTO:
        return Spread(shape.min_nodes, shape.max_nodes, is_asked=False)
    kind, lock = ShapeKind(shape.type.value), shape.topology_lock
    if lock:
        return Spread(len(lock), len(lock), is_asked=True, kind=kind, lock=lock)
    return Spread(shape.min_nodes, shape.max_nodes, is_asked=True, kind=kind)


def failed_lanes(failures: Iterable[Failure]) -> frozenset[Barred]:
    return frozenset(barred_by(failure) for failure in failures)


def barred_by(failure: Failure) -> Barred:
    return Barred(failure.node, failure.engine, failure.pool)
