"""`covey cache`: this machine's artifacts, with or without a fleet."""

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click
from covey_agent.artifacts.adding import add_files, find_here, measure_added
from covey_agent.artifacts.cache import Cache, is_digest
from covey_agent.artifacts.disk import list_folder
from covey_agent.artifacts.entries import Entry, EntryKind, observe_entries
from covey_agent.artifacts.pins import release_added, sweep_pins
from covey_agent.artifacts.removal import remove_entry
from covey_agent.artifacts.verifying import Copy, check_blob, check_copy, find_copies
from covey_agent.options import default_cache
from covey_agent.ports import AgentError, Transfer
from covey_api.model import ResolvedArtifact
from covey_api.source import digest_in
from covey_api.units import format_bytes, parse_quantity
from rich.console import Console

from covey.bars import Bars
from covey.commands.options import cache_option
from covey.errors import CommandError, ExitCode
from covey.tables import render_json, render_table

_DAY_SECONDS = 86_400.0
_output_option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group()
def cache() -> None:
    """Look after this machine's artifacts."""


@cache.command()
@_output_option
@cache_option
def ls(output: str, folder: Path | None) -> None:
    """List models and files that were fetched, engines and broken downloads, what was used last first.

    What is needed by a running engine, an agent or a command is pinned: nothing removes it.
    """
    entries = _observe(open_cache(folder, is_only_looked_at=True))
    if output == "json":
        click.echo(render_json([_data(entry) for entry in entries]))
        return
    now = time.time()
    rows = [
        (e.kind.value, e.name, format_bytes(e.size_bytes), _age(now - e.used_at), e.pinned_by, e.source)
        for e in entries
    ]
    click.echo(render_table(("KIND", "NAME", "SIZE", "USED", "PINNED BY", "SOURCE"), rows))


@cache.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@_output_option
@cache_option
def add(paths: tuple[Path, ...], output: str, folder: Path | None) -> None:
    """Put files into the cache that have no other origin, and say by which source Models name them.

    PATH is a GGUF file (one of several means all), or the folder of a checkpoint. It is copied, and stays until
    `covey cache release`. Where this machine is a node, all nodes of its fleet get it from here, and a node that keeps
    the fleet's models has its own copy as soon as a Model names it.
    """
    opened = open_cache(folder)
    found: list[dict[str, object]] = []
    for path in paths:
        artifact = _add(opened, path)
        found.append({"source": artifact.source, "sha256": artifact.sha256, "bytes": artifact.size_bytes})
        if output == "text":
            click.echo(f"{path}: {format_bytes(artifact.size_bytes)}, source:", err=True)
            click.echo(artifact.source)
    if output == "json":
        click.echo(render_json(found))


@cache.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@cache_option
def release(sources: tuple[str, ...], folder: Path | None) -> None:
    """Let go of what `covey cache add` put there.

    SOURCE is `store://SHA256`, or the digest alone. From then on it is removed as any other artifact is: when room is
    needed and nobody needs it, or by `covey cache prune`.
    """
    opened = open_cache(folder)
    for source in sources:
        digest = digest_in(source) or source
        if not is_digest(digest):
            raise CommandError(f"SOURCE must be 'store://SHA256' or a digest; got '{source}'", ExitCode.WRONG_USE)
        try:
            is_released = release_added(opened.pins, digest)
        except OSError as error:
            raise CommandError(f"'{source}' can't be released in '{opened.folder}': {error.strerror}") from error
        if not is_released:
            raise CommandError(f"'{source}' was not put into the cache '{opened.folder}'", ExitCode.NOTHING_MATCHED)
        click.echo(f"released {source}")


@cache.command()
@click.option("--keep", metavar="SIZE", help="Remove only as much as is above this, such as 50Gi.")
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(min=0), help="Only what wasn't used for so long.")
@click.option("--engines", is_flag=True, help="Installed engines too, while nobody uses the cache.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@_output_option
@cache_option
def prune(
    keep: str | None, older_than: float | None, engines: bool, dry_run: bool, output: str, folder: Path | None
) -> None:
    """Remove what nobody needs, what was used longest ago first.

    Without `--keep` and `--older-than` that is everything that isn't pinned; engines only with `--engines`.
    """
    try:
        keep_bytes = parse_quantity(keep) if keep is not None else 0
    except ValueError as error:
        raise CommandError(f"`--keep`: {error}", ExitCode.WRONG_USE) from error
    opened = open_cache(folder, is_only_looked_at=dry_run)
    wish = Wish(keep_bytes, (older_than or 0.0) * _DAY_SECONDS, engines)
    chosen = choose_removals(_observe(opened), wish, time.time())
    if not dry_run:
        # Whoever came to need one since it was looked at keeps it.
        chosen = [entry for entry in chosen if _remove(opened, entry)]
        sweep_pins(opened.pins)
    if output == "json":
        click.echo(render_json([_data(entry) for entry in chosen]))
        return
    total_bytes = sum(entry.size_bytes for entry in chosen)
    for entry in chosen:
        click.echo(f"{'would remove' if dry_run else 'removed'} {entry.kind} '{entry.name}' ({_size(entry)})")
    click.echo(f"{format_bytes(total_bytes)} {'would be' if dry_run else 'are'} free")


@cache.command()
@_output_option
@cache_option
def verify(output: str, folder: Path | None) -> None:
    """Read every model and file whole, and remove what isn't what it was when it was fetched.

    What was removed is fetched again when it is needed. Exit code 1 when there was any.
    """
    opened = open_cache(folder)
    names = {digest: entry.name for entry in _observe(opened) for digest in entry.digests}
    began = time.monotonic()
    blobs = [path for path in list_folder(opened.blobs) if path.name in names]
    checked = [each for path in blobs if (each := _verify_blob(opened, path, names[path.name]))]
    changed_blobs = {each.sha256 for each in checked if not each.is_fine}
    for copy in find_copies(opened):
        # Of a blob that was changed itself the set is made anew.
        if copy.sha256 not in changed_blobs and (found := _verify_copy(copy)):
            checked.append(found)
    read_bytes = sum(each.size_bytes for each in checked)
    rate = format_bytes(int(read_bytes / max(time.monotonic() - began, 1e-9)))
    changed = [each for each in checked if not each.is_fine]
    if output == "json":
        found = [{"name": each.name, "sha256": each.sha256, "changed": not each.is_fine} for each in checked]
        click.echo(render_json(found))
    else:
        for each in changed:
            outcome = "can't be read, and stays:" if os.path.lexists(each.path) else "was changed on the disk; removed"
            what = f"blob {each.sha256}" if each.path.parent == opened.blobs else f"'{each.path}'"
            click.echo(f"'{each.name}' {outcome} {what}")
        click.echo(f"{len(checked)} files, {format_bytes(read_bytes)}, {rate}/s: {len(changed)} changed")
    if changed:
        click.get_current_context().exit(ExitCode.FAILED)


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that was read whole."""

    name: str
    sha256: str
    path: Path
    size_bytes: int
    is_fine: bool


def _verify_blob(opened: Cache, path: Path, name: str) -> Checked | None:
    """None: it was removed meanwhile."""
    try:
        size_bytes = path.lstat().st_size
        found = opened.find_blob(path.name, size_bytes)
        is_fine = found is not None and asyncio.run(check_blob(opened, path.name, found))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"'{name}' can't be read in '{path}': {error.strerror}") from error
    return Checked(name, path.name, path, size_bytes, is_fine)


def _verify_copy(copy: Copy) -> Checked | None:
    """None: it was removed meanwhile."""
    try:
        size_bytes = copy.path.lstat().st_size
        return Checked(copy.path.name, copy.sha256, copy.path, size_bytes, check_copy(copy))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"'{copy.path}' can't be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Wish:
    """What `covey cache prune` was asked for."""

    keep_bytes: int
    least_seconds: float
    engines: bool


def choose_removals(entries: list[Entry], wish: Wish, now: float) -> list[Entry]:
    """What was used longest ago first, until no more than `keep_bytes` is left. What stays anyway counts too."""
    left_bytes = sum(entry.size_bytes for entry in entries)
    chosen: list[Entry] = []
    for entry in sorted(entries, key=lambda each: (each.used_at, each.name)):
        is_kept = entry.pinned_by or (entry.kind is EntryKind.ENGINE and not wish.engines)
        if is_kept or now - entry.used_at < wish.least_seconds or (wish.keep_bytes and left_bytes <= wish.keep_bytes):
            continue
        chosen.append(entry)
        left_bytes -= entry.size_bytes
    return chosen


def open_cache(folder: Path | None, *, is_only_looked_at: bool = False) -> Cache:
    where = (folder or default_cache()).absolute()
    try:
        return Cache(where, is_only_looked_at=is_only_looked_at)
    except OSError as error:
        raise CommandError(f"the cache '{where}' can't be used: {error.strerror}") from error


def _observe(opened: Cache) -> list[Entry]:
    try:
        return observe_entries(opened)
    except OSError as error:
        raise CommandError(f"the cache '{opened.folder}' can't be looked at: {error.strerror}") from error


def _remove(opened: Cache, entry: Entry) -> bool:
    try:
        return remove_entry(opened, entry)
    except OSError as error:
        raise CommandError(f"'{entry.name}' can't be removed from '{opened.folder}': {error.strerror}") from error


def _add(opened: Cache, path: Path) -> ResolvedArtifact:
    try:
        sizes = measure_added(path)
        with Bars(Console(file=sys.stderr)) as bars:

            def show(transfer: Transfer) -> None:
                bars.show(str(path), path.name, transfer.done_bytes, transfer.total_bytes, transfer.bytes_per_second)

            here = find_here(opened, sizes, show)
            new_bytes = sum(size for each, size in sizes.items() if each not in here)
            if new_bytes:
                asyncio.run(opened.room.require(new_bytes, path.name))
            return add_files(opened, path, sizes, show, here)
    except AgentError as error:
        raise CommandError(error.message) from error
    except ValueError as error:
        raise CommandError(f"'{path}' can't be named by a source: {error}", ExitCode.WRONG_USE) from error
    except OSError as error:
        raise CommandError(f"'{path}' can't be put into '{opened.folder}': {error.strerror or error}") from error


def _size(entry: Entry) -> str:
    return format_bytes(entry.size_bytes)


def _age(seconds: float) -> str:
    for limit, unit, size in ((120, "s", 1), (7200, "m", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{max(int(seconds), 0) // size}{unit}"
    return f"{int(seconds) // 86_400}d"


def _data(entry: Entry) -> dict[str, object]:
    return {
        "kind": entry.kind.value,
        "name": entry.name,
        "source": entry.source,
        "digests": sorted(entry.digests),
        "bytes": entry.size_bytes,
        "usedAt": int(entry.used_at),
        "pinnedBy": entry.pinned_by,
    }
