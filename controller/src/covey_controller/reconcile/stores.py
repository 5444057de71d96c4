"""What a node keeps for the fleet: the files of every Model, as far as they are resolved (ADR 48). Pure."""

from collections.abc import Iterable

from covey_api.messages import MAX_KEPT, MAX_KEPT_BYTES, MAX_KEPT_FILES
from covey_api.model import Model, ResolvedArtifact
from covey_api.node import Keeps, Node


def is_store(node: Node) -> bool:
    return node.spec.store.keeps is Keeps.MODELS and node.metadata.deletion_timestamp is None


def plan_kept(models: Iterable[Model]) -> tuple[ResolvedArtifact, ...]:
    """Each once, by digest and source. A file of one machine is that machine's; beyond the bounds, none is kept."""
    found: dict[tuple[str, str], ResolvedArtifact] = {}
    for model in models:
        sources = {variant.source for variant in model.spec.variants}
        sources |= {companion.source for variant in model.spec.variants for _, companion in variant.companions}
        for status in model.status.variants:
            for artifact in (status.artifact, *(companion.artifact for companion in status.companions)):
                if artifact is not None and artifact.source in sources and not artifact.source.startswith("file:"):
                    found[artifact.digest, artifact.source] = artifact
    kept: list[ResolvedArtifact] = []
    files, rendered_bytes = 0, 0
    for _, artifact in sorted(found.items()):
        files += len(artifact.files)
        rendered_bytes += _rendered_bytes(artifact)
        if len(kept) < MAX_KEPT and files <= MAX_KEPT_FILES and rendered_bytes <= MAX_KEPT_BYTES:
            kept.append(artifact)
    return tuple(kept)


def _rendered_bytes(artifact: ResolvedArtifact) -> int:
    """About what it takes in a snapshot: rendering each in each plan would cost more than the plan."""
    words = (artifact.source, artifact.name, artifact.archive.filename if artifact.archive else "")
    names = (*words, *(file.name for file in artifact.files))
    return sum(len(each.encode()) for each in names) + 512 + 128 * len(artifact.files)
