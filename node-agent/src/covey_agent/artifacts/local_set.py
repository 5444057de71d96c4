"""`file://` sources that are one of several GGUF files of a model (`NAME-00001-of-00003.gguf`): used where they are.

Whichever file of the set is named, the set is meant, and the engine is given the first: it finds the others beside it
by their names. The digest is a folder's, over the list of files that `sha256sum` prints. One that the Model declares is
believed until the files are fetched, as a single file's is: whoever asks for a header waits for it, and to hash large
files takes minutes.
"""

from pathlib import Path

from covey_api.model import ArtifactFile, ResolvedArtifact
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.shards import list_shards

from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.folder import MAX_FILES, digest_of
from covey_agent.artifacts.header import Header, find_unmeasured, read_gguf_set
from covey_agent.artifacts.local import LocalFiles, read_pieces
from covey_agent.artifacts.web import corrupt, unavailable
from covey_agent.ports import AgentError, OnTransfer, Transfer

# Names of files that are missing, in one message.
_MAX_NAMES = 3


def is_of_set(name: str) -> bool:
    """Whether a file's name says that it is one of several."""
    try:
        return len(list_shards(name)) > 1
    except HeaderInvalid as error:
        raise corrupt(f"{error}.") from error


class LocalSets:
    """Models over several files of this machine, by the path of any of them."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        self._verified: set[str] = set()

    def digests(self) -> frozenset[str]:
        """Of sets that were fetched since this agent began."""
        return frozenset(self._verified)

    async def read_header(self, source: str, path: str, sha256: str) -> tuple[ResolvedArtifact, Header]:
        sizes = await run_to_end(observe_set, path)
        heads = {f"file '{each}'": (read_pieces(str(each)), size) for each, size in sizes.items()}
        geometry = await find_unmeasured(read_gguf_set(heads, f"the {len(sizes)} files of '{path}'"))
        files = () if sha256 else await self.observe_files(sizes)
        artifact = ResolvedArtifact(
            source=source,
            name=next(iter(sizes)).name,
            size_bytes=sum(sizes.values()),
            sha256=sha256 or digest_of(files),
            files=files,
        )
        return artifact, geometry

    async def fetch(self, artifact: ResolvedArtifact, path: str, on_transfer: OnTransfer) -> Path:
        """The first file, once the content of all is known to be the artifact's."""
        sizes = await run_to_end(observe_set, path)
        found = digest_of(await self.observe_files(sizes))
        if found != artifact.sha256:
            raise _changed(path, artifact.sha256 or "", found)
        self._verified.add(found)
        on_transfer(Transfer(artifact.size_bytes, artifact.size_bytes, 0))
        return next(iter(sizes))

    async def observe_files(self, sizes: dict[Path, int]) -> tuple[ArtifactFile, ...]:
        """One after the other: a disk that reads several at once is slower."""
        return tuple(
            [
                ArtifactFile(name=path.name, size_bytes=size, sha256=await self._files.observe_digest(str(path)))
                for path, size in sizes.items()
            ]
        )


def observe_set(path: str) -> dict[Path, int]:
    """Size of each file of the set, in order; AgentError with the names of those that are missing. Blocking."""
    paths = [Path(path).with_name(name) for name in list_shards(Path(path).name)]
    if len(paths) > MAX_FILES:
        raise corrupt(f"'{path}' must be one of at most {MAX_FILES} files; its name says {len(paths)}.")
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        lacking = ", ".join(f"'{name}'" for name in missing[:_MAX_NAMES])
        more = f" and {len(missing) - _MAX_NAMES} more" if len(missing) > _MAX_NAMES else ""
        raise unavailable(
            f"folder '{paths[0].parent}' must have all {len(paths)} files of the model on this node; it lacks "
            f"{lacking}{more}."
        )
    try:
        return {each: each.stat().st_size for each in paths}
    except OSError as error:
        raise unavailable(f"'{path}' can't be read on this node: {error.strerror}.") from error


def _changed(path: str, wanted: str, found: str) -> AgentError:
    return corrupt(
        f"the files of '{path}' must have sha256 {wanted} over their list; they have {found}. Put the right files "
        "there, or change the Model's source or sha256."
    )
