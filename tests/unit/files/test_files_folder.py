"""What counts as the source's content, and what forbids it."""

import itertools
import os
from pathlib import Path

import pytest
from covey_controller.stores.files import folder
from covey_controller.stores.files.folder import Snapshot, read_source, scan_source


def read_folder(source: Path) -> Snapshot:
    snapshot = read_source(source)
    assert snapshot is not None
    return snapshot


def messages(snapshot: Snapshot) -> list[str]:
    return [error.message for error in snapshot.errors]


def test_documents_are_found_in_every_depth_by_their_ending(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    for name in ("a.yaml", "b.yml", "c.json", "deep/er/d.yaml", "README.md"):
        (tmp_path / name).write_text(name)
    assert dict(read_folder(tmp_path).files) == {
        "a.yaml": b"a.yaml",
        "b.yml": b"b.yml",
        "c.json": b"c.json",
        "deep/er/d.yaml": b"deep/er/d.yaml",
    }


@pytest.mark.parametrize("name", [".hidden.yaml", "a.yaml~", ".a.yaml.swp", "a.yaml.tmp", "a.swp", ".git/config.yaml"])
def test_names_of_unsaved_things_are_ignored(tmp_path: Path, name: str) -> None:
    before = scan_source(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("kind: x")
    assert read_folder(tmp_path).files == {}
    assert scan_source(tmp_path) == before, "an ignored name isn't even a change"


def test_missing_source_is_empty_and_says_so(tmp_path: Path) -> None:
    snapshot = read_folder(tmp_path / "none")
    assert snapshot.scan.is_missing
    assert snapshot.files == {}
    assert snapshot.errors == ()


def test_single_file_is_a_source_whatever_its_ending(tmp_path: Path) -> None:
    (tmp_path / "fleet.conf").write_text("x")
    (tmp_path / "other.yaml").write_text("y")
    snapshot = read_folder(tmp_path / "fleet.conf")
    assert snapshot.files == {"fleet.conf": b"x"}
    assert snapshot.scan.directories == (str(tmp_path.resolve()),)


def test_link_inside_the_source_is_followed_and_counts_once(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("x")
    (tmp_path / "a-link.yaml").symlink_to("real.yaml")
    assert read_folder(tmp_path).files == {"real.yaml": b"x"}


def test_mounted_config_map_is_read_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026/model.yaml").write_text("x")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "model.yaml").symlink_to("..data/model.yaml")
    assert read_folder(tmp_path).files == {"model.yaml": b"x"}


def test_linked_directories_that_make_a_circle_are_searched_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.yaml").write_text("x")
    (tmp_path / "sub/up").symlink_to("..")
    (tmp_path / "again").symlink_to("sub")
    assert list(read_folder(tmp_path).files.values()) == [b"x"]


@pytest.mark.parametrize("target", ["file", "directory", "nothing"])
def test_link_out_of_the_source_is_refused_by_name(tmp_path: Path, target: str) -> None:
    source, outside = tmp_path / "source", tmp_path / "outside"
    source.mkdir()
    if target == "directory":
        outside.mkdir()
    elif target == "file":
        outside.write_text("x")
    (source / "out.yaml").symlink_to(outside)
    (source / "notes.txt").symlink_to("/etc/hostname")
    (error,) = read_folder(source).errors
    assert error.file == "out.yaml"
    assert error.found == str(outside)
    assert "must lead to something inside the source" in error.message


def test_neighbour_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet-secret").mkdir()
    (tmp_path / "fleet-secret/a.yaml").write_text("x")
    (tmp_path / "fleet/a.yaml").symlink_to("../fleet-secret/a.yaml")
    assert len(read_folder(tmp_path / "fleet").errors) == 1


def test_link_that_leads_nowhere_or_in_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").symlink_to("missing.yaml")
    (tmp_path / "round.yaml").symlink_to("round.yaml")
    assert [error.file for error in read_folder(tmp_path).errors] == ["gone.yaml", "round.yaml"]


def test_source_that_is_a_link_is_what_it_leads_to_now(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(version)
    (tmp_path / "current").symlink_to("one")
    before = read_folder(tmp_path / "current")
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", tmp_path / "current")
    after = read_folder(tmp_path / "current")
    assert (before.files["a.yaml"], after.files["a.yaml"]) == (b"one", b"two")
    assert before.scan != after.scan


def test_file_that_is_too_large_is_an_error_and_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "large.yaml", "wb") as file:
        file.truncate(folder.MAX_FILE_BYTES + 1)
    snapshot = read_folder(tmp_path)
    assert snapshot.files == {}
    assert "must be at most 1048576 bytes; got 1048577" in messages(snapshot)[0]


def test_too_many_bytes_in_all_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_TOTAL_BYTES", 10)
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text("123456")
    (error,) = read_folder(tmp_path).errors
    assert error.file == "b.yaml"


def test_too_many_files_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_FILES", 2)
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text("x")
    (error,) = read_folder(tmp_path).errors
    assert "at most 2 document files; got 3" in error.message


def test_search_of_a_wrong_folder_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_ENTRIES", 5)
    for number in range(9):
        (tmp_path / f"photo-{number}.jpg").write_text("x")
    (error,) = read_folder(tmp_path).errors
    assert "at most 5 names" in error.message


def test_pipe_with_a_documents_name_is_refused_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (error,) = read_folder(tmp_path).errors
    assert "must be a regular file" in error.message


def test_name_that_is_no_text_is_refused_in_printable_words(tmp_path: Path) -> None:
    (Path(os.fsdecode(bytes(tmp_path) + b"/\xff.yaml"))).write_text("x")
    (error,) = read_folder(tmp_path).errors
    assert error.file == "\\xff.yaml"
    error.message.encode()


def test_every_kind_of_change_makes_another_scan(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("1")
    scans = [scan_source(tmp_path)]
    file.write_text("22")
    scans.append(scan_source(tmp_path))
    os.rename(file, tmp_path / "b.yaml")
    scans.append(scan_source(tmp_path))
    (tmp_path / "sub").mkdir()
    scans.append(scan_source(tmp_path))
    (tmp_path / "b.yaml").unlink()
    scans.append(scan_source(tmp_path))
    assert all(before != after for before, after in itertools.pairwise(scans))
    assert scan_source(tmp_path) == scans[-1]


def test_source_that_changes_through_every_reading_gives_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("x")
    look = folder.scan_source

    def looking_and_writing(source: Path) -> folder.Scan:
        scan = look(source)
        file.write_text(file.read_text() + "x")
        return scan

    monkeypatch.setattr(folder, "scan_source", looking_and_writing)
    assert read_source(tmp_path) is None


def test_digest_tells_contents_paths_and_faults_apart(tmp_path: Path) -> None:
    seen = {
        folder.digest_of({}),
        folder.digest_of({"a": b"b"}),
        folder.digest_of({"ab": b""}),
        folder.digest_of({"b": b"b"}),
        folder.digest_of({"a": b"", "b": b""}),
    }
    (tmp_path / "gone.yaml").symlink_to("missing.yaml")
    broken = read_folder(tmp_path)
    seen.add(folder.digest_of(broken.files, broken.errors))
    assert len(seen) == 6
