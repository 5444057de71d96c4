"""What platform teams judge with, as Python calls: helm, kstatus, and the interpreters of Argo CD and of Flux."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.kube.programs import tool_command

TOOL_SECONDS = 120.0
Objects = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one of them says of one object."""

    status: str
    message: str


def run_helm(*arguments: str, kubeconfig: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run helm with a home of its own. AssertionError with both outputs, unless it may fail."""
    with tempfile.TemporaryDirectory(prefix="covey-helm-") as home:
        environment = os.environ | {"HOME": home, "HELM_CACHE_HOME": home, "KUBECONFIG": str(kubeconfig or os.devnull)}
        answer = subprocess.run(
            [*tool_command("helm"), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    assert not (check and answer.returncode), f"helm {' '.join(arguments)}:\n{answer.stdout}{answer.stderr}"
    return answer


def judge_kstatus(objects: Objects) -> list[Verdict]:
    """As kubectl plugins, kpt and Helm's `--wait` see them."""
    return _judge("kstatus", objects)


def judge_lua(script: Path, objects: Objects) -> list[Verdict]:
    """As Argo CD sees them by this health script."""
    return _judge("lua", objects, str(script))


def judge_cel(expressions: Mapping[str, str], objects: Objects) -> list[Verdict]:
    """As Flux sees them by one entry of `healthCheckExprs`."""
    return _judge("cel", objects, json.dumps(expressions))


def _judge(tool: str, objects: Objects, *arguments: str) -> list[Verdict]:
    answer = subprocess.run(
        [*tool_command(tool), *arguments],
        input=json.dumps(list(objects)),
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    assert answer.returncode == 0, f"{tool}: {answer.stderr}"
    return [Verdict(**each) for each in json.loads(answer.stdout)]
