"""Hold the estimator beside an independent one, `gguf-parser-go`, for models that are too large to load here.

    PYTHONPATH=tests python tools/estimator_peers.py

Writes headers with the real geometry of a dozen families (no weights: the files are sparse), asks both, and writes the
fixture and the table of docs/reference/estimator.md. Needs Go; the module is `tests/testbed/gguf`.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from kit.loading import read_geometry
from kit.peer_models import MODELS
from kit.peers import DOCUMENT, FIXTURE, WINDOW, Peer, render_peers, render_table, replace_table

MODULE = Path(__file__).parents[1] / "tests" / "testbed" / "gguf"
BUILD_SECONDS = 900


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "gguf"
        build = ["go", "build", "-buildvcs=false", "-o", str(program), "."]
        subprocess.run(build, cwd=MODULE, timeout=BUILD_SECONDS, check=True)
        peers = [ask(program, name, made.write(Path(folder) / "model.gguf")) for name, made in MODELS.items()]
    FIXTURE.write_text(render_peers(peers))
    DOCUMENT.write_text(replace_table(DOCUMENT.read_text(), render_table(peers)))


def ask(program: Path, name: str, path: Path) -> Peer:
    """What the other parser says of this file, on a processor at `WINDOW` tokens in one slot."""
    command = [str(program), str(path), str(WINDOW)]
    answer = json.loads(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)
    host = answer["devices"][0]
    return Peer(
        model=name,
        geometry=read_geometry(path),
        weights_bytes=sum(host["weight"].values()),
        kv_cache_bytes=sum(host["kvCache"].values()),
    )


if __name__ == "__main__":
    main()
