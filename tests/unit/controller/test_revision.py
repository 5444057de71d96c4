"""Golden hashes: an upgrade of Covey rolls nothing. A change here rolls every fleet: raise the recipe, and say so."""

import pytest
from covey_api.engines import ArtifactFormat, EngineName, KvCacheType
from covey_api.meta import RESTART_ANNOTATION, ObjectMeta
from covey_api.model import Model, ModelMemory, Variant
from covey_api.placement import ContextWish, KvCacheWish, NodeChoice, Placement, Rollout, Timeouts
from covey_api.trust import ModelTrust, Proof, Signer, SigstoreIdentity
from covey_controller.reconcile.revision import revision_of
from kit import builders

FIRST = "r1-ce6ebca37fd1"


def variant(**changes: object) -> Variant:
    fields: dict[str, object] = {
        "name": "gguf-q4-1",
        "format": ArtifactFormat.GGUF,
        "source": builders.SOURCE,
        "engines": (EngineName.LLAMA_SERVER,),
    }
    return Variant.model_validate(fields | changes)


def test_golden_revision_of_the_smallest_example() -> None:
    assert revision_of(builders.placement(), builders.model()) == FIRST


def test_a_restart_is_another_revision_and_no_other_annotation_is() -> None:
    def annotated(**annotations: str) -> str:
        plain = builders.placement()
        metadata = plain.metadata.model_copy(update={"annotations": annotations})
        return revision_of(plain.model_copy(update={"metadata": metadata}), builders.model())

    assert annotated() == annotated(**{"covey.dev/retry": "1"}) == annotated(**{RESTART_ANNOTATION: ""}) == FIRST
    assert len({FIRST, *(annotated(**{RESTART_ANNOTATION: value}) for value in ("1", "2"))}) == 3


def test_golden_revision_of_a_placement_with_every_field() -> None:
    placement = builders.placement(
        engines=(EngineName.LLAMA_SERVER,),
        context=ContextWish(tokens=4096, min_tokens=2048),
        concurrency=2,
        kv_cache=KvCacheWish(type=KvCacheType.Q8_0),
    )
    model = builders.model(
        context_tokens=8192,
        geometry=builders.geometry(),
        memory=ModelMemory(workspace="64Mi"),
        variants=(variant(sha256="b" * 64),),
    )
    assert revision_of(placement, model) == "r1-a0cffd7eaa54"


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(builders.placement(replicas=3), id="replicas"),
        pytest.param(builders.placement(suspend=True), id="suspend"),
        pytest.param(builders.placement(rollout=Rollout(drain_seconds=5)), id="drain seconds"),
        pytest.param(builders.placement(timeouts=Timeouts(startup_seconds=5)), id="start-up seconds"),
        pytest.param(builders.placement(nodes=NodeChoice(selector={"zone": "a"}, exclude=("b",))), id="nodes"),
        pytest.param(builders.placement(concurrency=4), id="a default said out loud"),
    ],
)
def test_what_an_instance_is_not_made_from_rolls_nothing(placement: Placement) -> None:
    assert revision_of(placement, builders.model()) == FIRST


def test_labels_aliases_and_what_was_read_roll_nothing() -> None:
    read = builders.model(aliases=("smol",))
    unread = builders.model(known=False)
    labelled = read.model_copy(update={"metadata": ObjectMeta(name="smollm2", labels={"a": "b"}, generation=7)})
    assert {revision_of(builders.placement(), model) for model in (read, unread, labelled)} == {FIRST}


@pytest.mark.parametrize(
    ("placement", "model"),
    [
        pytest.param(builders.placement(context=ContextWish(tokens=4096)), builders.model(), id="context"),
        pytest.param(builders.placement(concurrency=2), builders.model(), id="slots"),
        pytest.param(builders.placement(kv_cache=KvCacheWish(type=KvCacheType.Q8_0)), builders.model(), id="kv type"),
        pytest.param(builders.placement(engines=(EngineName.LLAMA_SERVER,)), builders.model(), id="engines"),
        pytest.param(builders.placement(), builders.model(variants=(variant(source="file:///m.gguf"),)), id="source"),
        pytest.param(builders.placement(), builders.model(variants=(variant(sha256="b" * 64),)), id="digest"),
        pytest.param(builders.placement(), builders.model(context_tokens=4096), id="the Model's cap"),
        pytest.param(builders.placement(), builders.model(memory=ModelMemory(workspace="1Gi")), id="workspace"),
        pytest.param(builders.placement(), builders.model(geometry=builders.geometry()), id="declared geometry"),
        pytest.param(builders.placement(model="other"), builders.model(), id="another Model"),
    ],
)
def test_what_an_instance_is_made_from_rolls(placement: Placement, model: Model) -> None:
    assert revision_of(placement, model) != FIRST


def test_explicit_f16_is_another_wish_than_none() -> None:
    """The Fleet's default may change; a type that the Placement names may not."""
    named = builders.placement(kv_cache=KvCacheWish(type=KvCacheType.F16))
    assert revision_of(named, builders.model()) != FIRST


def test_who_must_have_signed_rolls_and_what_is_not_demanded_rolls_nothing() -> None:
    signer = Signer(sigstore=SigstoreIdentity(identity="a@example.com", issuer="https://example.com"))
    by_digest = builders.model(trust=ModelTrust(requires=Proof.DIGEST, signers=(signer,)))
    assert revision_of(builders.placement(), by_digest) == FIRST
    signed = {
        revision_of(builders.placement(), builders.model(trust=ModelTrust(requires=Proof.SIGNATURE, signers=signers)))
        for signers in ((), (signer,), (signer, Signer(public_key="-----BEGIN PUBLIC KEY-----\n")))
    }
    assert len(signed | {FIRST}) == 4
