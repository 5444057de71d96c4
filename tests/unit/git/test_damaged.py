"""Which clones that git can't use are kept."""

from pathlib import Path

import pytest
from covey_controller.stores.git.command import Fault, GitFault
from covey_controller.stores.git.damaged import MAX_DAMAGED, may_hold_edits, put_aside

ONE, TWO = "1" * 40, "2" * 40


def clone(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("files", "holds"),
    [
        ({"HEAD": "ref: refs/heads/covey\n"}, False),
        ({"refs/heads/covey": f"{ONE}\n", "refs/covey/remote": f"{ONE}\n"}, False),
        ({"refs/heads/covey": f"{TWO}\n", "refs/covey/remote": f"{ONE}\n"}, True),
        ({"packed-refs": f"# pack-refs\n{ONE} refs/covey/remote\n{ONE} refs/heads/covey\n"}, False),
        ({"packed-refs": f"{ONE} refs/covey/remote\n{ONE} refs/heads/covey\n", "refs/heads/covey": f"{TWO}\n"}, True),
        ({"refs/heads/covey": ONE, "refs/covey/remote": ONE, "refs/covey/aside/3": TWO}, True),
        ({"packed-refs": f"{ONE} refs/covey/remote\n{ONE} refs/heads/covey\n{TWO} refs/covey/aside/3\n"}, True),
        ({"refs/heads/covey": "", "refs/covey/remote": ONE}, True),
        ({"objects/ab/cdef": "an edit whose refs are lost"}, True),
    ],
)
def test_what_is_not_surely_at_the_remote_counts_as_an_edit(tmp_path: Path, files: dict[str, str], holds: bool) -> None:
    assert may_hold_edits(clone(tmp_path / "clone", files)) is holds


def test_what_is_no_folder_holds_no_edit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert not may_hold_edits(tmp_path / "file")
    assert not may_hold_edits(tmp_path / "none")
    assert put_aside(tmp_path / "none") is None


def test_clones_with_edits_are_never_replaced_and_at_last_no_other_is_put_aside(tmp_path: Path) -> None:
    for number in range(MAX_DAMAGED):
        put_aside(clone(tmp_path / "clone", {"refs/heads/covey": str(number)}))
    found = {path.name: (path / "refs/heads/covey").read_text() for path in tmp_path.iterdir()}
    assert found == {f"clone.damaged{f'-{n + 1}' if n else ''}": str(n) for n in range(MAX_DAMAGED)}
    last = clone(tmp_path / "clone", {"refs/heads/covey": "last"})
    with pytest.raises(GitFault, match="take out of them what is still wanted") as refused:
        put_aside(last)
    assert refused.value.fault is Fault.UNUSABLE
    assert last.is_dir()
