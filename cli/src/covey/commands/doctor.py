"""`covey doctor`: looks at this machine, and mends what is safe to mend."""

import json
import logging
import os
import sys
from pathlib import Path

import click
from covey_agent.options import default_cache

from covey.doctor.accelerators import ENGINES_SECONDS, look_at_engines_here, look_at_gpu
from covey.doctor.clock import look_at_clock
from covey.doctor.examine import Check, examine, mend
from covey.doctor.finding import Level, judge, render_text, tidy
from covey.doctor.folders import look_at_cache, look_at_disk, look_at_state
from covey.doctor.machine import look_at_files, look_at_groups, look_at_sleep
from covey.doctor.network import look_at_controller, look_at_indexes
from covey.doctor.place import Place
from covey.doctor.ports import look_at_ports
from covey.doctor.services import look_at_services
from covey.errors import ExitCode
from covey.paths import CACHE_VARIABLE, STATE_VARIABLE, default_state_folder

CHECKS = (
    Check("state", look_at_state),
    Check("cache", look_at_cache),
    Check("disk", look_at_disk),
    Check("gpu", look_at_gpu),
    Check("engines", look_at_engines_here, ENGINES_SECONDS),
    Check("ports", look_at_ports),
    Check("clock", look_at_clock),
    Check("controller", look_at_controller),
    Check("index", look_at_indexes, 30.0),
    Check("sleep", look_at_sleep),
    Check("files", look_at_files),
    Check("cgroup", look_at_groups),
    Check("service", look_at_services),
)


@click.command()
@click.option("--fix", is_flag=True, help="Mend what is safe to mend; what needs a person is said.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--strict", is_flag=True, help="A warning is a failure too.")
@click.option("--controller", default="", metavar="URL", help="The fleet API to reach; by default as last joined.")
@click.option(
    "--cache",
    type=Path,  # click's own type would look at it, and hang where its disk does
    metavar="DIRECTORY",
    envvar=CACHE_VARIABLE,
    default=default_cache,
    help=f"Folder for models and engines; also {CACHE_VARIABLE}.",
)
@click.option(
    "--state",
    type=Path,
    metavar="DIRECTORY",
    default=default_state_folder,
    help=f"The state folder; also {STATE_VARIABLE}.",
)
def doctor(fix: bool, output: str, strict: bool, controller: str, cache: Path, state: Path) -> None:
    """Look at what this machine needs to be a node.

    GPU, engines, folders, disk, ports, clock, controller, indexes, sleep, limits, services: each with what is so, what
    follows and what to do. It needs no fleet and disturbs none. Exit code 0: nothing is broken (with --strict: no
    warning either); 1: something is.
    """
    logging.disable()  # the probes are the agent's, and tell their complaints to its log
    place = Place(state.expanduser().absolute(), cache.expanduser().absolute(), os.environ, Path.home(), controller)
    findings = examine(CHECKS, place)
    mended: list[str] = []
    if fix and (mended := mend(findings)):
        findings = examine(CHECKS, place)
    verdict = judge(findings)
    if output == "json":
        body = {
            "verdict": verdict.value,
            "mended": [tidy(each) for each in mended],
            "findings": [each.to_json() for each in findings],
        }
        click.echo(json.dumps(body, indent=2))
    else:
        click.echo(render_text(findings, mended))
    failed = verdict is Level.BROKEN or (strict and verdict is Level.WARNING)
    sys.stdout.flush()
    # Not by the interpreter's end: it would wait for what a thread that hangs holds.
    os._exit(ExitCode.FAILED if failed else ExitCode.DONE)
