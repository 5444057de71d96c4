"""From what engines took to what the next estimate is: the only writer of `Model.status.variants[].calibrations`.

A load is one start of one member's engine (attempt and restart). The leader follows the loads that it hears of; one
that ends while nobody leads is not counted, which only delays a lowering. Factors are kept in the Model's status, since
a new leader must not plan with less than what was seen.

What is learned of an artifact holds for that artifact: a variant whose source or digest changed begins anew.
"""

from dataclasses import dataclass

from covey_api.engines import HOST_POOL
from covey_api.instance import MAX_CALIBRATION_PERCENT, Costs, Instance, InstanceSpec, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.model import Model, VariantCalibration, VariantStatus
from covey_api.reasons import EventReason
from covey_planner.fit.calibration import (
    Calibration,
    as_learned,
    explain_factor,
    formula_of,
    observe_end,
    observe_use,
)

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import MemberSight
from covey_controller.reconcile.world import Load, LoadKey


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a factor is kept."""

    model: ObjectKey
    variant: VariantStatus


def plan_calibrations(draft: Draft) -> None:
    """Raise what is exceeded now; count what ended since the last plan."""
    current: dict[LoadKey, Load] = {}
    for sight in draft.sights.values():
        for member in sight.members:
            if load := _observe_load(draft, sight.instance, member):
                current[load[0]] = load[1]
    for _, load in sorted(current.items()):
        _learn(draft, load, is_over=False)
    for key, load in sorted(draft.loads.items()):
        if key not in current and load.was_ready:
            _learn(draft, load, is_over=True)
    draft.loads = current


def _observe_load(draft: Draft, instance: Instance, member: MemberSight) -> tuple[LoadKey, Load] | None:
    """The member's present load; None while no engine of it runs."""
    report = member.report
    if report is None or not report.used_bytes or not report.pid:
        return None
    if len(instance.spec.members) > 1:  # one learns of how a model loads, not of how its layers are shared
        return None
    key = LoadKey(instance.spec.instance_id, member.name, report.attempt, report.pid)
    before = draft.loads.get(key)
    is_ready = member.phase in (MemberPhase.READY, MemberPhase.DRAINING)
    return key, Load(
        instance=instance,
        member=member.name,
        used_bytes=max(report.used_bytes, before.used_bytes if before else 0),
        was_ready=is_ready or (before is not None and before.was_ready),
    )


def _learn(draft: Draft, load: Load, *, is_over: bool) -> None:
    place, costs = _find_place(draft, load.instance), _host_costs(load)
    if place is None or costs is None:
        return
    spec = load.instance.spec
    known = {(each.engine, each.compute): each for each in place.variant.calibrations}
    formula = formula_of(spec.engine)
    stored = known.get((spec.engine, spec.compute))
    if stored is None or stored.formula != formula:
        stored = VariantCalibration(engine=spec.engine, compute=spec.compute, formula=formula)
    before = Calibration(stored.percent, stored.loads, stored.most_percent)
    after = (observe_end if is_over else observe_use)(before, costs, load.used_bytes)
    if after == before:
        return
    known[spec.engine, spec.compute] = stored.model_copy(
        update={"percent": after.percent, "loads": after.loads, "most_percent": after.most_percent}
    )
    if after.percent != before.percent:
        _note(draft, place, spec, before.percent, after.percent)
    entries = tuple(known[lane] for lane in sorted(known))
    _keep(draft, place, place.variant.model_copy(update={"calibrations": entries}))


def _note(draft: Draft, place: _Place, spec: InstanceSpec, before: int, after: int) -> None:
    """Once for each change; a factor at its bound is a warning, for it hides how much more was taken."""
    lane = f"variant '{place.variant.name}' on lane {spec.engine}/{spec.compute}"
    words = f"{lane}: loads took {explain_factor(after)} of what is computed for host memory, not {before} %"
    is_bound = after == MAX_CALIBRATION_PERCENT
    message = f"{words}; new instances are stamped with it"
    draft.note(place.model, EventReason.CALIBRATED, message, warning=is_bound)


def _host_costs(load: Load) -> Costs | None:
    for member in load.instance.spec.members:
        if member.name == load.member:
            costs = next((costs for costs in member.costs if costs.pool == HOST_POOL), None)
            return as_learned(load.instance.spec.engine, costs) if costs else None
    return None


def _find_place(draft: Draft, instance: Instance) -> _Place | None:
    spec = instance.spec
    key = ObjectKey(Model.__name__, instance.metadata.namespace, spec.model)
    model = draft.models.get(key)
    for variant in model.status.variants if model else ():
        is_same = variant.artifact is not None and variant.artifact.digest == spec.artifact.digest
        if variant.name == spec.variant and is_same:
            return _Place(key, variant)
    return None


def _keep(draft: Draft, place: _Place, changed: VariantStatus) -> None:
    model = draft.models[place.model]
    entries = tuple(changed if each.name == changed.name else each for each in model.status.variants)
    status = model.status.model_copy(update={"variants": entries})
    draft.models[place.model] = model.model_copy(update={"status": status})
