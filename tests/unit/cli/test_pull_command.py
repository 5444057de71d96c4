"""`covey pull` of a model of a fleet: all that an engine starts with, and nothing of an earlier declaration."""

import contextlib
import hashlib
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from covey.commands import pull as pulling
from covey.errors import CommandError
from covey_agent.artifacts.pins import Pins
from covey_api.companion import Companion, CompanionRole
from covey_api.engines import ArtifactFormat, EngineName, Task
from covey_api.model import CompanionStatus, Model, ModelStatus, ResolvedArtifact, Variant, VariantStatus
from kit.builders import model as build


@dataclass
class Fleet:
    """What a command sees of one: its objects."""

    model: Model
    namespace: str = "default"
    objects: "Fleet" = field(init=False)

    def __post_init__(self) -> None:
        self.objects = self

    def get_object(self, plural: str, namespace: str, name: str) -> object:
        assert (plural, namespace, name) == (Model.PLURAL, "default", self.model.metadata.name)
        return self.model.model_dump(mode="json", by_alias=True)


def local(path: Path, content: bytes) -> ResolvedArtifact:
    path.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return ResolvedArtifact(source=path.as_uri(), name=path.name, size_bytes=len(content), sha256=sha256)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, ResolvedArtifact]:
    names = ("weights.gguf", "eyes.gguf", "small.gguf")
    return {name: local(tmp_path / name, name.encode() * 100) for name in names}


def declare(files: dict[str, ResolvedArtifact], **companions: str) -> Model:
    """With a projector and a draft model, read from there unless `companions` names what they are by now."""
    weights, eyes, small = files.values()
    variant = Variant(
        name="v",
        format=ArtifactFormat.GGUF,
        source=weights.source,
        engines=(EngineName.LLAMA_SERVER,),
        projector=Companion(source=companions.get("projector", eyes.source)),
        draft=Companion(source=companions.get("draft", small.source)),
    )
    read = (
        CompanionStatus(role=CompanionRole.PROJECTOR, source=eyes.source, artifact=eyes),
        CompanionStatus(role=CompanionRole.DRAFT, source=small.source, artifact=small, error="it was slow"),
    )
    status = VariantStatus(name="v", source=weights.source, artifact=weights, companions=read)
    made = build("seeing", tasks=(Task.CHAT, Task.VISION), variants=(variant,))
    return made.model_copy(update={"status": ModelStatus(variants=(status,))})


def pull(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model) -> Result:
    @contextlib.contextmanager
    def opened(_where: object) -> Generator[Fleet]:
        yield Fleet(model)

    monkeypatch.setattr(pulling, "open_fleet", opened)
    words = ["model/seeing", "--cache", str(tmp_path / "cache")]
    return CliRunner().invoke(pulling.pull, words)


def test_a_model_is_pulled_with_its_projector_and_draft_all_pinned_until_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, ResolvedArtifact]
) -> None:
    held: list[frozenset[str]] = []
    hold = Pins.hold

    def note(pins: Pins, digests: frozenset[str]) -> None:
        held.append(digests)
        hold(pins, digests)

    monkeypatch.setattr(Pins, "hold", note)
    result = pull(monkeypatch, tmp_path, declare(files))
    assert result.exit_code == 0, result.output
    for name, artifact in files.items():
        assert f"model/seeing: {name}, " in result.output
        assert f"sha256 {artifact.sha256}\n{tmp_path / name}\n" in result.output
    assert held == [frozenset(), {artifact.sha256 for artifact in files.values()}]


def test_a_model_of_which_a_header_is_not_read_yet_is_not_pulled_in_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, ResolvedArtifact]
) -> None:
    """What was read of another source is of no use."""
    result = pull(monkeypatch, tmp_path, declare(files, draft="file:///elsewhere.gguf"))
    assert isinstance(result.exception, CommandError)
    said = "no node has read all headers of model 'seeing' yet. draft of variant 'v': it was slow"
    assert str(result.exception) == said
