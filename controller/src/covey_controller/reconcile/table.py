"""The endpoints table: which Instances are routable, what each declared Model's state is, which keys are valid.

Routable: goal `Run`, not about to yield, a member that generated a token, an address. While its node is silent an
endpoint stays as it was last known, `confirmed: false`, until a gateway finds it unreachable. A draining Instance has
left the table.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import urlsplit

from covey_api.access_key import AccessKey
from covey_api.engines import KvLayout
from covey_api.instance import Instance, InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import ClientKey, Endpoint, Endpoints, ModelState, Progress, ServedModel
from covey_api.meta import DEFAULT_NAMESPACE
from covey_api.model import Model
from covey_api.placement import Placement, RequestTimeouts, UnknownFields

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.drains import live_gateways
from covey_controller.reconcile.fleet import live_until
from covey_controller.reconcile.outcomes import Done, Outcome, Stalled
from covey_controller.reconcile.sights import Sight

# What a client is told to wait for at least and at most, whatever the progress says.
RETRY_SECONDS = 5
MAX_RETRY_SECONDS = 60


def plan_table(draft: Draft, strays: list[Sight], outcomes: dict[ObjectKey, Outcome]) -> Endpoints:
    """The whole table, sorted; term and serial are set when it is published."""
    published = draft.world.published.endpoints
    known = {each.instance_id: each for each in published.endpoints} if published else {}
    served = {(each.namespace, each.name): each for each in published.models} if published else {}
    running = [s for s in (*draft.sights.values(), *strays) if s.instance.spec.goal is InstanceGoal.RUN]
    endpoints = [endpoint for sight in running if (endpoint := _endpoint(draft, sight, known)) is not None]
    refused = draft.indexed.refused_aliases
    ready: dict[tuple[str, str], int] = {}
    for endpoint in endpoints:
        ready[endpoint.namespace, endpoint.model] = ready.get((endpoint.namespace, endpoint.model), 0) + 1
    asked = draft.indexed.placements_of
    models = tuple(
        _resting_model(draft, model, refused.get(key, {}), served.get((key.namespace, key.name)), asked.get(key, ()))
        or _served_model(
            draft, key, model, refused.get(key, {}), ready.get((key.namespace, key.name), 0), outcomes, asked
        )
        for key, model in draft.models.items()
    )
    unheeded = refused_keys(draft.keys)
    client_keys = tuple(
        ClientKey(namespace=key.key.namespace, name=key.metadata.name, **key.spec.model_dump())
        for key in draft.keys
        if key.key not in unheeded
    )
    ordered = tuple(sorted(endpoints, key=lambda endpoint: endpoint.instance_id))
    return Endpoints(
        term=draft.world.term,
        serial=0,
        models=models,
        endpoints=ordered,
        keys=client_keys,
        gateways=_sharers(draft, client_keys, ordered),
    )


def _sharers(draft: Draft, keys: Iterable[ClientKey], endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    """Gateways among whom limits and caches are shared; none where there are none, so that a table is as it was when
    one comes.

    One that is lost counts until its requests are over: its clients may be served by its table until then.
    """
    is_limited = any(key.requests_per_minute or key.tokens_per_minute or key.concurrency for key in keys)
    if not is_limited and not any(endpoint.kv_tokens for endpoint in endpoints):
        return ()
    for gateway in draft.world.gateways:
        if not gateway.connected:
            draft.wake_at(live_until(gateway, draft.watching_since))
    return tuple(sorted(gateway.name for gateway in live_gateways(draft)))


def keep_drained(draft: Draft, planned: Endpoints) -> Endpoints:
    """The planned table for when the plan's actions can't be stored: what they would drain stays in it.

    So does what makes room for another: that one can't be started.

    It is of what was heard and of what is stored: what serves no more leaves it, whatever the store does.
    """
    stored = {
        each.spec.instance_id
        for each in draft.world.objects
        if isinstance(each, Instance) and each.spec.goal is InstanceGoal.RUN
    }
    sights = [
        each
        for each in draft.sights.values()
        if each.id in stored and (each.instance.spec.goal is InstanceGoal.DRAIN or each.id in draft.yields)
    ]
    kept = [endpoint for sight in sights if (endpoint := _render_endpoint(draft, sight, None)) is not None]
    ordered = tuple(sorted((*planned.endpoints, *kept), key=lambda endpoint: endpoint.instance_id))
    return planned.model_copy(update={"endpoints": ordered})


def _endpoint(draft: Draft, sight: Sight, known: Mapping[str, Endpoint]) -> Endpoint | None:
    """`known`: those that are published, by instanceId; of what is at rest they are as they were."""
    if sight.id in draft.yields:
        return None
    before = known.get(sight.id)
    if before is not None and sight.id in draft.resting_ids:
        doubted = _is_doubted(draft, sight)
        return before if before.doubted is doubted else before.model_copy(update={"doubted": doubted})
    return _render_endpoint(draft, sight, before)


def _render_endpoint(draft: Draft, sight: Sight, before: Endpoint | None) -> Endpoint | None:
    """None where nothing serves. `before`: as it is published."""
    spec = sight.instance.spec
    if sight.phase is not MemberPhase.READY or sight.id in draft.unreachable:
        return None
    address = address_of(sight)
    if address is None:
        return None
    first = sight.members[0]
    front = front_of(sight)
    namespace = sight.instance.metadata.namespace or DEFAULT_NAMESPACE
    return Endpoint(
        instance_id=sight.id,
        instance=f"{namespace}/{sight.instance.metadata.name}",
        namespace=namespace,
        model=spec.model,
        node=spec.members[0].node,
        host=address[0],
        port=address[1],
        key=before.key if before else draft.world.engine_key(sight.id),
        engine=spec.engine,
        slots=spec.options.slots,
        context_tokens=spec.options.context_tokens,
        confirmed=sight.is_confirmed,
        machine=first.node.report.machine if first.report and first.node and first.node.report else "",
        attempt=spec.attempt,
        address=front[0] if front else "",
        front_port=front[1] if front else 0,
        timeouts=_timeouts_of(draft, namespace, spec.placement),
        target=_target_of(draft, namespace, spec.placement),
        doubted=_is_doubted(draft, sight),
        kv_tokens=spec.options.context_tokens if spec.options.kv_layout is KvLayout.UNIFIED else 0,
    )


def _is_doubted(draft: Draft, sight: Sight) -> bool:
    """Whether requests on it wait in vain. An engine that is only idle isn't: without requests it would stay so."""
    doubt = draft.doubts.get(sight.id)
    return doubt is not None and doubt.is_waited_for


def _timeouts_of(draft: Draft, namespace: str, name: str) -> RequestTimeouts:
    """Of a Placement that is gone: the usual ones."""
    placement = draft.placements.get(ObjectKey(Placement.__name__, namespace, name))
    if placement is None:
        return RequestTimeouts()
    return RequestTimeouts.model_validate(placement.spec.timeouts.model_dump(include=set(RequestTimeouts.model_fields)))


def _target_of(draft: Draft, namespace: str, name: str) -> int:
    placement = draft.placements.get(ObjectKey(Placement.__name__, namespace, name))
    return placement.spec.scaling.target if placement is not None and placement.spec.scaling is not None else 0


def address_of(sight: Sight) -> tuple[str, int] | None:
    """Where the first member's engine listens, on its machine: as its node reported, else as the store recalls."""
    first = sight.members[0]
    if first.report is not None:
        return ("127.0.0.1", first.report.port) if first.report.port else None
    return _parse_stored(sight.instance.status.endpoint)


def front_of(sight: Sight) -> tuple[str, int] | None:
    """Where gateways of other machines reach it: address and port of the first member's front. None: nowhere."""
    first = sight.members[0]
    report = first.node.report if first.node else None
    if first.report is not None and report is not None:
        return (report.address, first.report.front_port) if report.address and first.report.front_port else None
    return _parse_stored(sight.instance.status.front)


def _parse_stored(url: str) -> tuple[str, int] | None:
    try:
        stored = urlsplit(url)
        return (stored.hostname, stored.port) if stored.hostname and stored.port else None
    except ValueError:  # an earlier version stored whatever a node said
        return None


def refused_keys(keys: Collection[AccessKey]) -> frozenset[ObjectKey]:
    """Those whose hash an older one has, wherever it is: else who reads a hash could make the key theirs, or end it."""
    if len({key.spec.hash for key in keys}) == len(keys):  # nearly always; sorting a thousand keys takes 16 ms
        return frozenset()
    owners: dict[str, ObjectKey] = {}
    by_age = sorted(keys, key=lambda key: (key.metadata.creation_timestamp, key.key.namespace, key.key.name))
    return frozenset(key.key for key in by_age if owners.setdefault(key.spec.hash, key.key) != key.key)


def _served_model(
    draft: Draft,
    key: ObjectKey,
    model: Model,
    refused: Mapping[str, str],
    ready: int,
    outcomes: dict[ObjectKey, Outcome],
    asked: Mapping[ObjectKey, Sequence[ObjectKey]],
) -> ServedModel:
    placements = asked.get(key, ())
    wanted = sum(draft.progressing[each].wanted for each in placements)
    state, outcome = _model_state(ready, wanted, [outcomes[each] for each in placements])
    progress = _progress(draft, placements) if state is ModelState.LOADING else None
    weights = next((each.artifact for each in model.status.variants if each.artifact), None)
    return ServedModel(
        namespace=key.namespace,
        name=key.name,
        aliases=tuple(alias for alias in model.spec.aliases if alias not in refused),
        tasks=tuple(model.spec.tasks),
        created=_epoch(model.metadata.creation_timestamp),
        state=state,
        reason=outcome.reason if outcome and state is not ModelState.READY else "",
        message=outcome.message if outcome and state is not ModelState.READY else "",
        replicas=wanted,
        progress=progress,
        retry_after_seconds=retry_after_seconds(progress),
        passes_unknown_fields=bool(placements)
        and all(draft.placements[each].spec.unknown_fields is UnknownFields.FORWARD for each in placements),
        wakes=wanted == 0 and any(_scales(draft.placements[each]) for each in placements),
        hold_seconds=_hold_seconds(draft, state, placements),
        weights_bytes=weights.size_bytes if weights else 0,
        weights_digest=weights.digest.partition("#")[0] if weights else "",
    )


def _hold_seconds(draft: Draft, state: ModelState, placements: Sequence[ObjectKey]) -> int:
    """0 where waiting doesn't help: it can't be served, or nobody may start it."""
    if state is ModelState.UNAVAILABLE:
        return 0
    able = [each for each in placements if draft.progressing[each].wanted or _scales(draft.placements[each])]
    return max((draft.placements[each].spec.timeouts.hold_seconds for each in able), default=0)


def _scales(placement: Placement) -> bool:
    """Whether it starts for who asks."""
    is_leaving = placement.metadata.deletion_timestamp is not None
    return placement.spec.scaling is not None and not placement.spec.suspend and not is_leaving


def _resting_model(
    draft: Draft, model: Model, refused: Mapping[str, str], before: ServedModel | None, placements: Sequence[ObjectKey]
) -> ServedModel | None:
    """As it is published, while all that ask for it serve and are at rest."""
    if before is None or before.state is not ModelState.READY or refused or before.aliases != model.spec.aliases:
        return None
    if draft.yields and any(sight.id in draft.yields for each in placements for sight in draft.sights_of(each)):
        return None
    return before if placements and all(each in draft.resting for each in placements) else None


def _model_state(ready: int, wanted: int, outcomes: list[Outcome]) -> tuple[ModelState, Outcome | None]:
    """1. Any endpoint: ready. 2. Nobody asks: not placed. 3. All that ask are stalled: unavailable. 4. Loading."""
    going = [outcome for outcome in outcomes if not isinstance(outcome, Stalled)]
    if ready:
        return ModelState.READY, None
    if wanted == 0:
        return ModelState.NOT_PLACED, outcomes[0] if outcomes else None
    if not going:
        return ModelState.UNAVAILABLE, outcomes[0]
    return ModelState.LOADING, next((o for o in going if not isinstance(o, Done)), going[0])


def _progress(draft: Draft, placements: Sequence[ObjectKey]) -> Progress | None:
    """Of the replica that is nearest to its end: the first one to serve."""
    found: list[Progress] = []
    for placement in placements:
        for sight in draft.sights_of(placement):
            if sight.instance.spec.goal is InstanceGoal.RUN:
                found.extend(m.report.progress for m in sight.members if m.report and m.report.progress)
    return min(found, key=lambda progress: (progress.total_bytes - progress.done_bytes, progress.step), default=None)


def retry_after_seconds(progress: Progress | None) -> int:
    """How long the rest takes at the present rate, within bounds."""
    if progress is None or progress.bytes_per_second <= 0:
        return RETRY_SECONDS
    rest = max(0, progress.total_bytes - progress.done_bytes)
    return min(MAX_RETRY_SECONDS, max(RETRY_SECONDS, -(-rest // progress.bytes_per_second)))


def _epoch(timestamp: str) -> int:
    """Seconds since the epoch; 0 for an object without a creation time."""
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()) if timestamp else 0
