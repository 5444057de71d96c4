"""What a node keeps for the fleet: the files of every Model, as far as they are resolved (ADR 48), and what it lacks of
that. Pure.

What is beyond the bounds is not kept. The Models that were there first come first: a new one takes no older one's
place.
"""

from collections.abc import Iterable, Sequence

from covey_api.messages import MAX_KEPT, MAX_KEPT_BYTES, MAX_KEPT_FILES
from covey_api.model import Model, ResolvedArtifact
from covey_api.node import Keeps
from covey_api.reasons import EventReason, NodeReason
from covey_api.units import format_bytes

from covey_controller.reconcile.conditions import Claim, make_claim
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import NodeSight

TYPE = "StoreIncomplete"
# In one message, by size: more would be read by nobody.
MAX_NAMES = 5


def is_store(node: NodeSight) -> bool:
    return (
        node.node is not None
        and node.node.metadata.deletion_timestamp is None
        and node.node.spec.store.keeps is Keeps.MODELS
    )


def observe_kept(draft: Draft) -> tuple[tuple[ResolvedArtifact, ...], tuple[ResolvedArtifact, ...]]:
    """Of this plan, for each of its stores: made once, when all that it changes of Models is decided."""
    if draft.kept is None:
        draft.kept = plan_kept(draft.models.values())
    return draft.kept


def plan_kept(models: Iterable[Model]) -> tuple[tuple[ResolvedArtifact, ...], tuple[ResolvedArtifact, ...]]:
    """What is kept, and what is beyond the bounds: each once, by digest and source. A file of one machine is that
    machine's."""
    found: dict[tuple[str, str], tuple[str, ResolvedArtifact]] = {}
    for model in models:
        since = model.metadata.creation_timestamp
        sources = {variant.source for variant in model.spec.variants}
        sources |= {companion.source for variant in model.spec.variants for _, companion in variant.companions}
        for status in model.status.variants:
            for artifact in (status.artifact, *(companion.artifact for companion in status.companions)):
                if artifact is not None and artifact.source in sources and not artifact.source.startswith("file:"):
                    key = (artifact.digest, artifact.source)
                    found[key] = (min(since, found[key][0]) if key in found else since, artifact)
    kept: list[ResolvedArtifact] = []
    beyond: list[ResolvedArtifact] = []
    files, rendered_bytes = 0, 0
    for _, (_, artifact) in sorted(found.items(), key=lambda item: (item[1][0], item[0])):
        count, size_bytes = files + len(artifact.files), rendered_bytes + _rendered_bytes(artifact)
        if len(kept) < MAX_KEPT and count <= MAX_KEPT_FILES and size_bytes <= MAX_KEPT_BYTES:
            files, rendered_bytes = count, size_bytes
            kept.append(artifact)
        else:
            beyond.append(artifact)
    return tuple(kept), tuple(beyond)


def _rendered_bytes(artifact: ResolvedArtifact) -> int:
    """About what it takes in a snapshot: rendering each in each plan would cost more than the plan."""
    words = (artifact.source, artifact.name, artifact.archive.filename if artifact.archive else "")
    names = (*words, *(file.name for file in artifact.files))
    return sum(len(each.encode()) for each in names) + 512 + 128 * len(artifact.files)


def plan_store_condition(draft: Draft, sight: NodeSight) -> tuple[Claim, ...]:
    """`StoreIncomplete`, only while something lacks; noted when it appears. What a silent store said last stands."""
    node = sight.node
    if node is None or not is_store(sight):
        return ()
    kept, beyond = observe_kept(draft)
    sources = {artifact.source for artifact in kept}
    reported = (sight.report.unkept if sight.report else None) or ()
    unkept = [(each.source, each.size_bytes, each.cause.value) for each in reported if each.source in sources]
    before = next((each for each in node.status.conditions if each.type == TYPE), None)
    if sight.report is None and before is not None:
        return (Claim(before.type, before.status, before.reason, before.message),)
    message = _explain(unkept, beyond)
    if not message:
        return ()
    if before is None:
        draft.note(node.key, EventReason.STORE_INCOMPLETE, message, warning=True)
    return (make_claim(TYPE, is_true=True, reason=NodeReason.STORE_INCOMPLETE, message=message),)


def _explain(unkept: Sequence[tuple[str, int, str]], beyond: Sequence[ResolvedArtifact]) -> str:
    bounds = f"beyond the {MAX_KEPT} artifacts, {MAX_KEPT_FILES} files and {format_bytes(MAX_KEPT_BYTES)} of names"
    lacking = [*unkept, *((each.source, each.size_bytes, "") for each in beyond)]
    if not lacking:
        return ""
    lacking.sort(key=lambda each: (-each[1], each[0]))
    named = [f"'{source}' ({format_bytes(count)}): {cause or bounds}" for source, count, cause in lacking[:MAX_NAMES]]
    more = lacking[MAX_NAMES:]
    rest = f"; and {len(more)} more with {format_bytes(sum(each[1] for each in more))}" if more else ""
    return f"does not keep {'; '.join(named)}{rest}"
