"""The `covey` command: parse, call, print; one place that turns failures into exit codes."""

import os
import sys
from typing import NoReturn

import click
from covey_api.text import escape_controls

from covey.commands.chat import chat
from covey.commands.export import export
from covey.commands.fit import fit
from covey.commands.join import join
from covey.commands.objects import apply, delete, describe, get, wait, why
from covey.commands.plan import diff, plan
from covey.commands.secrets import key, token
from covey.commands.up import up
from covey.errors import CommandError, ExitCode


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (up, join, get, describe, why, plan, diff, fit, apply, delete, wait, export, chat, key, token):
    cli.add_command(command)
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
