"""Projector and draft model of a variant: asked for, refused where they are something else, stamped, part of what a
replica is made from."""

from typing import Any

import pytest
from covey_api.companion import Companion, CompanionRole
from covey_api.engines import ArtifactFormat, EngineName, Task
from covey_api.kinds import ObjectKey
from covey_api.model import Geometry, Model, Variant
from covey_api.placement import Placement
from covey_api.reasons import EventReason, ModelReason
from covey_api.trust import ModelTrust, Proof, SignedBy, Signer
from covey_controller.reconcile.forecast import forecast
from covey_controller.reconcile.forecast_text import render_forecast
from covey_controller.reconcile.making import demand_proof
from covey_controller.reconcile.revision import revision_of
from covey_controller.reconcile.why import explain
from covey_controller.seal import seal_instance
from kit import builders
from kit.worlds import Worldlet

DRAFT = "pypi://small==1#small/draft.gguf"
PROJECTOR = "pypi://eyes==1#eyes/mmproj.gguf"


def variant(**changes: Any) -> Variant:
    fields: dict[str, Any] = {
        "name": "gguf-q4-1",
        "format": ArtifactFormat.GGUF,
        "source": builders.SOURCE,
        "engines": (EngineName.LLAMA_SERVER,),
        "draft": Companion(source=DRAFT),
        "projector": Companion(source=PROJECTOR),
    }
    return Variant.model_validate(fields | changes)


def model(**changes: Any) -> Model:
    return builders.model(known=False, variants=(variant(**changes),), tasks=(Task.CHAT, Task.VISION))


def clip() -> Geometry:
    return builders.geometry(architecture="clip", kv_head_counts=(), vocabulary_size=1, context_tokens=1024)


def fleet(found: Model, headers: dict[str, Geometry] | None = None) -> Worldlet:
    story = Worldlet()
    story.put(found, builders.placement())
    story.add_agents("a")
    story.agents["a"].headers = {PROJECTOR: clip()} if headers is None else headers
    story.run(30)
    return story


def stored(story: Worldlet) -> Model:
    return next(item for item in story.objects.values() if isinstance(item, Model))


def test_no_node_says_which_signature_is_demanded() -> None:
    """Other nodes would read what it names."""
    story = Worldlet()
    story.put(model(), builders.placement())
    story.add_agents("a")
    story.agents["a"].headers = {PROJECTOR: clip()}
    story.agents["a"].lies = {"proof": SignedBy(signature="file:///home/covey/.netrc", signers=())}
    story.run(30)
    spec = story.instances()[0].spec
    assert [each.proof for each in (spec.artifact, *(beside.artifact for beside in spec.companions))] == [None] * 3
    assert "netrc" not in stored(story).model_dump_json()
    kept = builders.artifact(proof=SignedBy(signature="file:///home/covey/.netrc", signers=()))
    assert demand_proof(model(), None, kept).proof is None, "a status that an earlier version wrote"


def test_a_demanded_signature_is_stamped_on_every_file() -> None:
    signed = variant(
        signature="file:///w.sig",
        draft=Companion(source=DRAFT, signature="file:///d.sig"),
        projector=Companion(source=PROJECTOR, signature="file:///p.sig"),
    )
    signer = Signer(public_key="-----BEGIN PUBLIC KEY-----")
    trust = ModelTrust(requires=Proof.SIGNATURE, signers=(signer,))
    found = builders.model(known=False, variants=(signed,), tasks=(Task.CHAT, Task.VISION), trust=trust)
    (instance,) = fleet(found).instances()
    artifacts = (instance.spec.artifact, *(each.artifact for each in instance.spec.companions))
    assert [each.proof for each in artifacts] == [
        SignedBy(signature=f"file:///{name}.sig", signers=(signer,)) for name in ("w", "p", "d")
    ]


def test_headers_of_companions_are_asked_for_and_stamped_with_their_bytes() -> None:
    story = fleet(model())
    (status,) = stored(story).status.variants
    assert [(each.role, each.source) for each in status.companions] == [
        (CompanionRole.PROJECTOR, PROJECTOR),
        (CompanionRole.DRAFT, DRAFT),
    ]
    assert stored(story).status.conditions[0].reason == ModelReason.RESOLVED
    (instance,) = story.instances()
    assert [(each.role, each.artifact.source) for each in instance.spec.companions] == [
        (CompanionRole.PROJECTOR, PROJECTOR),
        (CompanionRole.DRAFT, DRAFT),
    ]
    (costs,) = instance.spec.members[0].costs
    assert costs.companion_bytes > 2 * builders.geometry().weights_bytes
    read = [note.message for note in story.notes if note.reason == EventReason.HEADER_READ]
    assert "node 'a' read the header of the draft of variant 'gguf-q4-1'" in read


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "`projector` must name a projector (`mmproj`, architecture 'clip'); got architecture 'llama'"),
        ({PROJECTOR: clip(), DRAFT: clip()}, "`draft` must name a model; got a projector (`mmproj`)"),
        ({PROJECTOR: clip(), builders.SOURCE: clip()}, "`source` must name a model; got a projector (`mmproj`)"),
    ],
)
def test_a_file_that_is_something_else_is_refused_and_looked_at_again_with_patience(
    headers: dict[str, Geometry], words: str
) -> None:
    story = fleet(model(), headers)
    assert story.instances() == []
    (condition, *_) = [each for each in stored(story).status.conditions if each.type == "Ready"]
    assert condition.reason == ModelReason.GEOMETRY_UNAVAILABLE
    assert words in condition.message
    before = len(story.notes)
    story.run(600)
    assert len(story.notes) - before < 12, "a wait that doubles"


def test_a_companion_of_another_source_or_digest_is_read_anew_and_the_model_is_not() -> None:
    story = fleet(model())
    other = DRAFT.replace("draft", "other")
    changed = stored(story)
    spec = changed.spec.model_copy(update={"variants": (variant(draft=Companion(source=other)),)})
    read = len([note for note in story.notes if note.reason == EventReason.HEADER_READ])
    story.put(changed.model_copy(update={"spec": spec}))
    story.run(60)
    (status,) = stored(story).status.variants
    assert {each.source for each in status.companions} == {PROJECTOR, other}
    assert len([note for note in story.notes if note.reason == EventReason.HEADER_READ]) == read + 1
    (instance,) = story.instances()
    assert [each.artifact.source for each in instance.spec.companions] == [PROJECTOR, other], "it was rolled"


def test_what_a_companion_is_belongs_to_the_revision() -> None:
    placement = builders.placement()
    revisions = {
        revision_of(placement, found)
        for found in (
            builders.model(),
            builders.model(variants=(variant(projector=None),)),
            builders.model(variants=(variant(projector=None, draft=Companion(source=PROJECTOR)),)),
            builders.model(variants=(variant(draft=None),)),
            builders.model(variants=(variant(),)),
        )
    }
    assert len(revisions) == 5


def test_a_seal_covers_companions_and_is_as_ever_without() -> None:
    story = fleet(model())
    (instance,) = story.instances()
    plain = instance.model_copy(update={"spec": instance.spec.model_copy(update={"companions": ()})})
    fewer = instance.spec.companions[:1]
    one = instance.model_copy(update={"spec": instance.spec.model_copy(update={"companions": fewer})})
    assert len({seal_instance(b"secret", each) for each in (instance, plain, one)}) == 3


def test_a_forecast_fetches_companions_and_why_names_them() -> None:
    story = fleet(model())
    again = [item for item in story.objects.values() if isinstance(item, Placement)]
    begun = forecast(story.observe(), story.now, [builders.placement("other", model="smollm2")])
    text, found = render_forecast(begun, again, [])
    sources = {"draft.gguf", "mmproj.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"}
    assert {each["what"].split("'")[1] for each in found["downloads"]} == sources
    assert text.count("fetches: node 'a'") == len(found["downloads"]) == 3
    text, data = explain(story.observe(), story.now, ObjectKey("Placement", "default", "smollm2"))
    assert "    companions " in text
    assert "  draft 'draft.gguf', 93.8 MiB" in text
    assert [each["role"] for each in data["instances"][0]["companions"]] == ["Projector", "Draft"]
    text, _ = explain(story.observe(), story.now, ObjectKey("Model", "default", "smollm2"))
    assert f"  draft: 93.8 MiB, from {DRAFT}; on the disk of: no node" in text
