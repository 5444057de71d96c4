"""Answers about headers: whoever read one decides what every other node loads, so it must answer what was asked."""

import pytest
from covey_api.model import Model, ResolvedArtifact
from covey_api.reasons import EventReason
from kit import builders
from kit.worlds import Worldlet

D, OTHER = "d" * 64, "e" * 64


def declare(sha256: str | None) -> Model:
    made = builders.model(known=False)
    (variant,) = made.spec.variants
    changed = variant.model_copy(update={"sha256": sha256})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"variants": (changed,)})})


def found(story: Worldlet) -> ResolvedArtifact | None:
    (model,) = (item for item in story.objects.values() if isinstance(item, Model))
    return model.status.variants[0].artifact if model.status.variants else None


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ({"source": "pypi://liar==1#w.gguf"}, "it is of 'pypi://liar==1#w.gguf'"),
        ({"sha256": OTHER}, f"must have sha256 {D}; it has {OTHER}"),
        ({"sha256": None}, f"must have sha256 {D}; it has none"),
    ],
    ids=["source", "digest", "none"],
)
def test_an_answer_to_another_question_is_not_taken_and_the_next_node_is_asked(
    lies: dict[str, object], words: str
) -> None:
    story = Worldlet()
    story.put(declare(D))
    story.add_agents("a", "b")
    story.agents["a"].lies = lies
    story.run(30)
    artifact = found(story)
    assert artifact is not None
    assert (artifact.source, artifact.sha256) == (builders.SOURCE, D)
    assert any(words in note.message for note in story.notes if note.reason == EventReason.HEADER_UNREAD)


def test_what_was_read_without_a_digest_is_read_again_once_the_model_demands_one() -> None:
    story = Worldlet()
    story.put(declare(None))
    story.add_agents("a")
    story.run(30)
    before = found(story)
    assert before is not None
    assert before.sha256 is None
    (model,) = (item for item in story.objects.values() if isinstance(item, Model))
    story.put(declare(D).model_copy(update={"metadata": model.metadata, "status": model.status}))
    story.run(30)
    after = found(story)
    assert after is not None
    assert after.sha256 == D
