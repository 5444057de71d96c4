"""A command imports what it needs and nothing else's."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, click
from covey.main import cli
cli.get_command(click.Context(cli), sys.argv[1])
print([name for name in ("covey_planner", "covey_agent", "cryptography", "jsonschema") if name in sys.modules])
"""


@pytest.mark.parametrize("command", ["get", "why", "apply", "wait", "chat"])
def test_a_question_imports_no_part_of_the_fleet(command: str) -> None:
    answer = subprocess.run([sys.executable, "-c", SCRIPT, command], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_an_unknown_command_is_refused_by_name() -> None:
    answer = subprocess.run([sys.executable, "-m", "covey", "gte"], capture_output=True, text=True, check=False)
    assert (answer.returncode, "No such command 'gte'" in answer.stderr) == (2, True)
