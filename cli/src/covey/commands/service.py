"""`covey service`: parts of Covey under systemd or launchd, so that they come back with the machine."""

import getpass
import json
import os
import pwd
import stat
import sys
import time
from pathlib import Path

import click
from covey_agent.options import default_cache

from covey.errors import CommandError, ExitCode
from covey.paths import default_state_folder
from covey.service.files import Written, create_environment_file, read_service_file, write_service_file
from covey.service.managers import Launchd, State, Status, Systemd, choose_manager
from covey.service.roles import ROLES, find_value, render_arguments
from covey.service.sealed import Hand, find_state, judge_hand
from covey.service.unit import SYSTEM_CACHE, SYSTEM_STATE, Service
from covey.service.users import can_read, owns_folder

_SYSTEM = click.option("--system", "is_system", is_flag=True, help="A service of the system, not of this user.")
_MANAGER = click.option(
    "--manager", "named", type=click.Choice(["systemd", "launchd"]), help="By default this system's own."
)


@click.group()
def service() -> None:
    """Run Covey as a service of systemd or launchd."""


@service.command(
    "install",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
)
@_SYSTEM
@_MANAGER
@click.option("--run-as", default="", metavar="USER", help="Of a system service: whose it is (else root's).")
@click.option("--force", is_flag=True, help="Replace a service file that was edited by hand.")
@click.option("--no-start", is_flag=True, help="Write the files, and tell nobody of them.")
@click.option("--dry-run", is_flag=True, help="Print the service file, and write nothing.")
@click.argument("role", type=click.Choice(tuple(ROLES)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def install(
    is_system: bool,
    named: str | None,
    run_as: str,
    force: bool,
    no_start: bool,
    dry_run: bool,
    role: str,
    arguments: tuple[str, ...],
) -> None:
    """Install a service that runs `covey ROLE ARGUMENTS`, start it, and start it with the machine.

    ROLE is `up`, `join`, `controller`, `agent` or `gateway`; its arguments are that command's own, and options of
    `install` come before it. Again with the same words it changes nothing. A service file that was edited by hand is
    kept, and said, unless --force. Tokens go by --token-file alone. Variables go into the file that is named, which is
    made once and never written again.
    """
    if run_as and not is_system:
        raise CommandError("--run-as must be given with --system only", ExitCode.WRONG_USE)
    _check_user(run_as)
    manager = choose_manager(os.environ, Path.home(), named=named, is_system=is_system)
    wanted = _plan(role, arguments, is_system=is_system, run_as=run_as)
    try:
        content = manager.render(wanted)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from None
    path = manager.path(role)
    if dry_run:
        click.echo(f"# {path}\n{content}", nl=False)
        return
    written = write_service_file(path, content, is_forced=force)
    if written is Written.KEPT:
        raise CommandError(
            f"'{path}' was edited by hand, or isn't Covey's: it stays as it is, and nothing was changed. --dry-run "
            "shows what would be written; --force replaces it"
        )
    click.echo(f"{written} {path}")
    if create_environment_file(wanted.environment_file, os.environ, is_system=is_system):
        click.echo(f"created {wanted.environment_file} (variables of the service: yours to edit)")
    _note_token(wanted)
    if is_system and not wanted.run_as:
        click.echo("note: it runs as root, and so do its engines; --run-as USER gives it to another", err=True)
    if no_start:
        return
    for note in manager.start(wanted, is_changed=written is Written.CHANGED):
        click.echo(f"note: {note}")
    click.echo(f"{wanted.name} is started; see `covey service status{' --system' if is_system else ''}`")


def _plan(role: str, arguments: tuple[str, ...], *, is_system: bool, run_as: str) -> Service:
    state = SYSTEM_STATE if is_system else default_state_folder().expanduser().absolute()
    cache = SYSTEM_CACHE if is_system else default_cache().absolute()
    rendered = render_arguments(role, arguments, Path.cwd(), state, cache)
    state = Path(find_value(rendered, "--state"))
    user = run_as if run_as != "root" else ""
    _require_token(role, rendered, state, user)
    base = Path("/etc") if is_system else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    script = Path(sys.executable).parent / "covey"
    program = (str(script),) if script.exists() else (sys.executable, "-m", "covey")
    planned = Service(role, (*program, role, *rendered), state, base / "covey" / f"{role}.env", is_system, user)
    _require_folders(planned)
    return planned


def _require_folders(planned: Service) -> None:
    """Of a system service with a user of its own: systemd makes the usual ones for it, and nobody makes others."""
    if not planned.run_as:
        return
    for folder, usual in ((planned.state, SYSTEM_STATE), (planned.cache, SYSTEM_CACHE)):
        if folder not in (None, usual) and not owns_folder(planned.run_as, folder):
            words = f"'{folder}' must be a folder of '{planned.run_as}', which can't make it itself"
            how = f"`install -d -m 700 -o {planned.run_as} '{folder}'`, and let it through to there"
            raise CommandError(f"{words}: {how}", ExitCode.WRONG_USE)


def _check_user(name: str) -> None:
    try:
        pwd.getpwnam(name or "root")
    except KeyError:
        raise CommandError(f"--run-as: this machine has no user '{name}'", ExitCode.WRONG_USE) from None


def _require_token(role: str, rendered: list[str], state: Path, user: str) -> None:
    """A service can't ask for one, and gets none by the environment. `user`: whose it is, if not who installs it."""
    known, path = ROLES[role], find_value(rendered, "--token-file")
    if path:
        if not os.path.isfile(path):
            raise CommandError(f"--token-file: there is no file '{path}'", ExitCode.WRONG_USE)
        if not os.access(path, os.R_OK) or (user and not can_read(user, Path(path))):
            whose = f"'{user}'" if user else "this user"
            how = f": `chown {user} '{path}'`, in a folder that it may enter" if user else ""
            raise CommandError(f"--token-file: {whose} can't read '{path}'{how}", ExitCode.WRONG_USE)
        return
    if known.needs_token and "--table" not in rendered and not _has_joined(role, rendered, state):
        words = "this machine hasn't joined yet by this name, or its certificate has expired, and a service can't ask"
        how = f"write a token into a file of mode 0600, and give `--token-file FILE` after '{role}'"
        raise CommandError(f"{words} for a token: {how}", ExitCode.WRONG_USE)


def _has_joined(role: str, rendered: list[str], state: Path) -> bool:
    """Whether it would start without a token."""
    # Certificates take a moment to load, and only this asks for them.
    from covey_api.messages import CertificateRole
    from covey_api.pod_names import render_covey_name
    from covey_fleet_client.identity import read_identity

    from covey.up.joined import has_joined

    name, known = find_value(rendered, "--name"), ROLES[role]
    try:
        if role == "join":
            return has_joined(state, name, has_gateway="--no-gateway" not in rendered)
        identity = read_identity(state / known.identity)
    except OSError:
        return False
    if identity is None:
        return False
    return identity.is_valid(CertificateRole(known.identity), render_covey_name(name) or identity.name, time.time())


def _note_token(wanted: Service) -> None:
    path = find_value(wanted.command, "--token-file")
    if path and stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
        click.echo(f"note: '{path}' holds a secret and is open to others: chmod 600 '{path}'", err=True)


@service.command("uninstall")
@_SYSTEM
@_MANAGER
@click.option("--force", is_flag=True, help="Also a service file that was edited by hand.")
@click.argument("role", type=click.Choice(tuple(ROLES)))
def uninstall(is_system: bool, named: str | None, force: bool, role: str) -> None:
    """Stop a service, and remove it. State, cache and the file of variables stay."""
    manager = choose_manager(os.environ, Path.home(), named=named, is_system=is_system)
    path = manager.path(role)
    text = read_service_file(path)
    if text is None:
        if not manager.has(role):
            click.echo(f"'{path}' isn't there: nothing to do")
            return
        manager.remove(role, "")
        manager.forget()
        click.echo(f"stopped covey-{role}, whose file '{path}' was gone")
        return
    if judge_hand(text) is Hand.EDITED and not force:
        words = f"'{path}' was edited by hand, or isn't Covey's: nothing was stopped or removed. --force does it"
        raise CommandError(words)
    manager.remove(role, find_state(text))
    path.unlink(missing_ok=True)
    manager.forget()
    click.echo(f"removed {path}")
    if role == "agent":
        grace = "engines that run end by themselves when nobody has claimed them for their grace (300 s)"
        click.echo(f"note: {grace}; at once: `covey agent --stop-all --state '{find_state(text)}'`")


@service.command("status")
@_SYSTEM
@_MANAGER
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.argument("role", type=click.Choice(tuple(ROLES)), required=False)
def status(is_system: bool, named: str | None, output: str, role: str | None) -> int:
    """What is installed, whether it runs and since when, and what it said last.

    Exit code 0: all that is installed runs; 1: something doesn't; 3: nothing is installed.
    """
    manager = choose_manager(os.environ, Path.home(), named=named, is_system=is_system)
    roles = [role] if role else list(ROLES)
    installed = {each: text for each in roles if (text := read_service_file(manager.path(each))) is not None}
    seen = {each: manager.observe(each, find_state(text)) for each, text in installed.items()}
    if output == "json":
        items = [_to_json(manager, each, installed[each], found) for each, found in seen.items()]
        click.echo(json.dumps({"services": items}, indent=2))
    else:
        for each, found in seen.items():
            click.echo("\n".join(_describe(manager, each, installed[each], found)))
        if not seen:
            click.echo(f"no service of Covey is installed for {'the system' if is_system else getpass.getuser()}")
    if not seen:
        return ExitCode.NOTHING_MATCHED
    return ExitCode.DONE if all(found.state is State.RUNNING for found in seen.values()) else ExitCode.FAILED


def _describe(manager: Systemd | Launchd, role: str, text: str, found: Status) -> list[str]:
    state = find_state(text)
    facts = [
        found.state.value,
        *([f"since {found.since}"] if found.since else []),
        *([f"pid {found.pid}"] if found.pid else []),
        *([f"{found.restarts} restarts"] if found.restarts else []),
        *([found.words] if found.words else []),
        "starts with the machine or its user" if found.is_enabled else "doesn't start by itself",
    ]
    edited = [f"  {manager.path(role)} was edited by hand"] if judge_hand(text) is Hand.EDITED else []
    where = f"  logs: {found.log_place}" + (
        f"; of each part: '{state}/log'" if role in ("up", "join") and state else ""
    )
    return [f"covey-{role}: {', '.join(facts)}", *edited, where, *(f"  | {line}" for line in found.log_lines)]


def _to_json(manager: Systemd | Launchd, role: str, text: str, found: Status) -> dict[str, object]:
    return {
        "role": role,
        "manager": manager.name,
        "file": str(manager.path(role)),
        "editedByHand": judge_hand(text) is Hand.EDITED,
        "state": found.state.value,
        "message": found.words,
        "since": found.since,
        "pid": found.pid,
        "restarts": found.restarts,
        "enabled": found.is_enabled,
        "stateFolder": find_state(text),
        "logs": found.log_place,
        "lastLines": list(found.log_lines),
    }
