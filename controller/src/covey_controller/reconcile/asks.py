"""Headers: which node is asked to read which artifact, and what its answer becomes.

A Model's variant is known once a node has resolved the sources of its files and read their headers; the controller
fetches nothing. Each artifact (source and digest) is asked for once at a time, of one node that offers an engine of the
variant; a node that fails is followed by the next one, and after a whole round of failures by a wait that doubles.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from covey_api.companion import CompanionRole
from covey_api.kinds import ObjectKey
from covey_api.messages import Ask, AskAnswer, AskKind
from covey_api.model import CompanionStatus, Model, Variant, VariantStatus
from covey_api.reasons import EventReason
from covey_api.source import digest_in
from covey_planner.types import NodeState

from covey_controller.reconcile.companions import explain_misfit, find_companion
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import NodeSight
from covey_controller.reconcile.wanted import fresh_status
from covey_controller.reconcile.world import ArtifactKey, OpenAsk, Search

ASK_SECONDS = 60.0
# Headers that one node reads at a time: each is a few ranged reads of its network.
MAX_OPEN_PER_NODE = 4
FIRST_ROUND_WAIT_SECONDS = 5.0
MAX_ROUND_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a variant: the weights (no role), or a companion."""

    variant: Variant
    role: CompanionRole | None
    key: ArtifactKey

    @property
    def words(self) -> str:
        name = f"variant '{self.variant.name}'"
        return f"the {self.role.lower()} of {name}" if self.role else name


def plan_answers(draft: Draft) -> None:
    """Take in what was answered, and what was not answered in time or can't be any more."""
    for ask_id, open_ask in sorted(draft.asks.items()):
        answer = draft.world.answers.get(ask_id)
        node = draft.nodes.get(open_ask.node)
        if answer is None:
            expiry = open_ask.since + ASK_SECONDS
            if draft.now < expiry and node is not None and node.state is not NodeState.UNKNOWN:
                draft.wake_at(expiry)
                continue
            answer = AskAnswer(id=ask_id, error=f"node '{open_ask.node}' did not answer within {int(ASK_SECONDS)} s")
        del draft.asks[ask_id]
        _take_answer(draft, open_ask, answer)
    draft.used_answers = sorted(draft.world.answers)


def _take_answer(draft: Draft, open_ask: OpenAsk, answer: AskAnswer) -> None:
    if answer.artifact is not None:
        # Which signature is demanded, the Model says, never a node: all that load the artifact would read it.
        answer = answer.model_copy(update={"artifact": answer.artifact.model_copy(update={"proof": None})})
    key = ArtifactKey(open_ask.ask.source, open_ask.ask.sha256)
    strange = _explain_strange(key, answer)
    error = answer.error or ("" if answer.artifact and answer.geometry else "the node's answer held no header")
    is_of_use = answer.artifact is not None and not strange
    for model_key, model in sorted(draft.models.items(), key=lambda item: (item[0].namespace, item[0].name)):
        for part in _parts_of(model):
            if part.key == key and not _is_known(model, part):
                misfit = strange or ("" if _is_declared(model, part, answer) else error)
                misfit = misfit or (explain_misfit(part.role, answer.geometry) if answer.geometry else "")
                is_of_use = is_of_use and not misfit
                words = f"node '{open_ask.node}': {misfit}" if misfit else ""
                model = _with_answer(model, part, answer, words[:1024])
                _note_answer(draft, model_key, part, open_ask.node, misfit)
        draft.models[model_key] = model
    if is_of_use:
        draft.searches.pop(key, None)
    else:
        search = draft.searches.get(key, Search())
        draft.searches[key] = Search(search.tried | {open_ask.node}, search.rounds, search.until)


def _is_declared(model: Model, part: Part, answer: AskAnswer) -> bool:
    """Whether the answer has all that is lacking: the Model says what nobody has measured."""
    return part.role is None and model.spec.geometry is not None and answer.artifact is not None


def _explain_strange(key: ArtifactKey, answer: AskAnswer) -> str:
    """Why this answers another question; empty: it doesn't. What is taken here is what other nodes load."""
    if answer.artifact is None:
        return ""
    if answer.artifact.source != key.source:
        return f"the node's answer must be of '{key.source}'; it is of '{answer.artifact.source}'"
    wanted = key.sha256 or digest_in(key.source)
    if wanted and answer.artifact.sha256 != wanted:
        return f"the node's answer must have sha256 {wanted}; it has {answer.artifact.sha256 or 'none'}"
    return ""


def _note_answer(draft: Draft, key: ObjectKey, part: Part, node: str, error: str) -> None:
    if error:
        message = f"node '{node}' could not read the header of {part.words}: {error}"
        draft.note(key, EventReason.HEADER_UNREAD, message, warning=True)
    else:
        draft.note(key, EventReason.HEADER_READ, f"node '{node}' read the header of {part.words}")


def _with_answer(model: Model, part: Part, answer: AskAnswer, error: str) -> Model:
    variant = part.variant
    others = {status.name: status for status in model.status.variants}
    before = others.get(variant.name) or VariantStatus(name=variant.name, source=variant.source)
    artifact, geometry = (None, None) if error else (answer.artifact, answer.geometry)
    if part.role is None:
        entry = VariantStatus(
            name=variant.name,
            source=variant.source,
            artifact=artifact,
            geometry=geometry,
            error=error,
            companions=before.companions,
        )
    else:
        read = CompanionStatus(
            role=part.role, source=part.key.source, artifact=artifact, geometry=geometry, error=error
        )
        by_role = {each.role: each for each in before.companions} | {part.role: read}
        companions = tuple(by_role[role] for role in CompanionRole if role in by_role)
        entry = before.model_copy(update={"companions": companions})
    others[variant.name] = entry
    entries = tuple(others[each.name] for each in model.spec.variants if each.name in others)
    return model.model_copy(update={"status": model.status.model_copy(update={"variants": entries})})


def _parts_of(model: Model) -> Iterator[Part]:
    for variant in model.spec.variants:
        yield Part(variant, None, ArtifactKey(variant.source, variant.sha256 or ""))
        for role, companion in variant.companions:
            yield Part(variant, role, ArtifactKey(companion.source, companion.sha256 or ""))


def _is_known(model: Model, part: Part) -> bool:
    """Resolved, and its geometry read or declared."""
    if part.role is not None:
        beside = find_companion(model, part.variant, part.role)
        return beside is not None and beside.artifact is not None and beside.geometry is not None
    status = fresh_status(model, part.variant)
    return status is not None and status.artifact is not None and bool(status.geometry or model.spec.geometry)


def is_read(model: Model) -> bool:
    """Whether nothing of it is left to ask for."""
    return all(_is_known(model, part) for part in _parts_of(model))


def _unknown_parts(draft: Draft) -> Iterator[tuple[ArtifactKey, list[Variant]]]:
    """With all variants that name it: whoever can run any of them can be asked."""
    found: dict[ArtifactKey, list[Variant]] = {}
    at_rest = draft.world.memory.resting_models
    for key, model in draft.models.items():
        if at_rest.get(key) is model:
            continue
        for part in _parts_of(model):
            if not _is_known(model, part):
                found.setdefault(part.key, []).append(part.variant)
    yield from sorted(found.items(), key=lambda item: item[0])


def plan_asks(draft: Draft) -> None:
    """Open one ask for each artifact that nobody knows and nobody is asked for."""
    unknown = dict(_unknown_parts(draft))
    draft.searches = {key: search for key, search in draft.searches.items() if key in unknown}
    asked = {ArtifactKey(each.ask.source, each.ask.sha256) for each in draft.asks.values()}
    draft.asks = {
        ask_id: each for ask_id, each in draft.asks.items() if ArtifactKey(each.ask.source, each.ask.sha256) in unknown
    }
    for key, variants in unknown.items():
        if key not in asked:
            _open_ask(draft, key, variants)


def _open_ask(draft: Draft, key: ArtifactKey, variants: Sequence[Variant]) -> None:
    search = draft.searches.get(key, Search())
    if draft.now < search.until:
        draft.wake_at(search.until)
        return
    able = [node for node in draft.nodes.values() if any(can_read(node, variant) for variant in variants)]
    if not able:
        return
    untried = [node for node in able if node.name not in search.tried]
    if not untried:
        wait = min(FIRST_ROUND_WAIT_SECONDS * 2.0 ** min(search.rounds, 16), MAX_ROUND_WAIT_SECONDS)
        draft.searches[key] = Search(frozenset(), search.rounds + 1, draft.now + wait)
        draft.wake_at(draft.now + wait)
        return
    open_on = {node.name: sum(each.node == node.name for each in draft.asks.values()) for node in untried}
    node = min(untried, key=lambda each: (_is_offline(each), open_on[each.name], each.name))
    if open_on[node.name] >= MAX_OPEN_PER_NODE:
        return
    ask = Ask(
        id=_ask_id(draft, key, node.name),
        kind=AskKind.HEADER,
        expires_seconds=ASK_SECONDS,
        source=key.source,
        sha256=key.sha256,
    )
    draft.asks[ask.id] = OpenAsk(ask, node.name, draft.now)


def _is_offline(node: NodeSight) -> bool:
    """Whether it knows by its cache alone what a source means."""
    return node.node is not None and node.node.spec.offline


def _ask_id(draft: Draft, key: ArtifactKey, node: str) -> str:
    """Another for each try: agents answer an id once."""
    words = f"{draft.world.term}|{draft.now:.6f}|{key.source}|{key.sha256}|{node}"
    return f"header-{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def can_read(node: NodeSight, variant: Variant) -> bool:
    """Whether this node can be asked for the variant's header."""
    if node.state is not NodeState.READY or node.report is None:
        return False
    return any(lane.engine in variant.engines for lane in node.report.lanes or ())
