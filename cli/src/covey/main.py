"""The `covey` command: parse, call, print; one place that turns failures into exit codes."""

import os
import sys
from typing import NoReturn

import click
from covey_api.text import escape_controls

from covey.commands.lazy import LazyGroup
from covey.errors import CommandError, ExitCode

# Where each command lives, in the order of `covey --help`.
COMMANDS = {
    "up": "covey.commands.up:up",
    "join": "covey.commands.join:join",
    "get": "covey.commands.objects:get",
    "describe": "covey.commands.objects:describe",
    "why": "covey.commands.objects:why",
    "plan": "covey.commands.plan:plan",
    "simulate": "covey.commands.simulate:simulate",
    "diff": "covey.commands.plan:diff",
    "fit": "covey.commands.fit:fit",
    "pull": "covey.commands.pull:pull",
    "cache": "covey.commands.cache:cache",
    "apply": "covey.commands.objects:apply",
    "delete": "covey.commands.objects:delete",
    "wait": "covey.commands.waiting:wait",
    "export": "covey.commands.export:export",
    "logs": "covey.commands.logs:logs",
    "capture": "covey.commands.logs:capture",
    "chat": "covey.commands.chat:chat",
    "doctor": "covey.commands.doctor:doctor",
    "service": "covey.commands.service:service",
    "key": "covey.commands.secrets:key",
    "token": "covey.commands.secrets:token",
}


@click.group(cls=LazyGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="covey")
def cli() -> None:
    """Covey runs LLMs on your machines as files say. Exit codes: 0 done, 1 failed, 2 wrong use, 3 nothing matched,
    4 timed out."""


def _part(module: str, summary: str) -> click.Command:
    @click.command(
        module.removeprefix("covey_"),
        help=summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.pass_context
    def run(context: click.Context) -> None:
        os.execv(sys.executable, [sys.executable, "-m", module, *context.args])  # noqa: S606 - our own module

    return run


cli.add_command(_part("covey_controller", "Run the controller alone."))
cli.add_command(_part("covey_agent", "Run the node agent alone."))
cli.add_command(_part("covey_gateway", "Run the gateway alone."))


def main(program: str) -> NoReturn:
    """Entry point. `program`: what the user called.

    Words for people go to standard error; standard output is the result.
    """
    try:
        answer = cli.main(prog_name=program, standalone_mode=False)
    except CommandError as error:
        click.echo(f"{program.split()[-1]}: {escape_controls(str(error))}", err=True)
        sys.exit(error.code)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.WRONG_USE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)  # as shells report an interrupted command
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; nothing is left to say
        sys.exit(ExitCode.FAILED)
    sys.exit(answer if isinstance(answer, int) else ExitCode.DONE)
