"""The list of a checkpoint's weights, which mlx-lm reads of a pipeline to know which files a rank needs.

It wants it also where one file has them all and nobody wrote a list: then it is made here, in the member's own folder,
beside links to the files.
"""

import json
import shutil
from pathlib import Path

INDEX = "model.safetensors.index.json"
FOLDER = "checkpoint"
# As mlx-lm looks for them.
_WEIGHTS = "model*.safetensors"


def list_weights(model: Path, home: Path) -> Path:
    """The checkpoint with a list of its weights; a new folder in `home` where it has none."""
    if (model / INDEX).exists():
        return model
    made = home / FOLDER
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    for each in model.iterdir():
        (made / each.name).symlink_to(each.resolve())
    files = {name: path.name for path in sorted(model.glob(_WEIGHTS)) for name in _read_names(path)}
    (made / INDEX).write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    return made


def _read_names(path: Path) -> list[str]:
    """Of the tensors that a file's head lists."""
    with path.open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [name for name in head if name != "__metadata__"]
