"""Which fleet a command means, and the way to it.

The first of these that there is (a flag beats a variable):

1. `--url`. 2. `--state`. 3. `--kubeconfig` or `--context`. 4. `COVEY_URL`.
5. As `kubectl covey`: the kubeconfig. 6. `COVEY_STATE`. 7. The default state folder, when a controller listens
there or a `covey up` keeps one there. 8. The kubeconfig. 9. The default state folder, whose absence is then the error.

What may surprise is said on standard error: that an answer comes from a cluster, or from here although a cluster was
named by a variable.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from covey_api.meta import DEFAULT_NAMESPACE

from covey.connection import Connection
from covey.control import Control, ControlApi, RemoteControl
from covey.errors import CommandError, ExitCode
from covey.kube.context import Context, has_kubeconfig, observe_context
from covey.paths import STATE_VARIABLE, default_state_folder, is_kept_up

URL_VARIABLE = "COVEY_URL"


@dataclass(frozen=True, slots=True)
class Where:
    """What the command line says of the fleet that is meant."""

    url: str | None = None
    state: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    fleet_namespace: str | None = None
    prefers_kubernetes: bool = False
    """Called as `kubectl covey`."""


@contextmanager
def open_fleet(where: Where) -> Generator[Connection]:
    """The fleet that is meant, during the block. CommandError when it can't be reached."""
    chosen = choose_way(where)
    if isinstance(chosen, Context):
        from covey.kube.connection import open_cluster  # parsing documents costs a tenth of a second

        with open_cluster(chosen, where.fleet_namespace) as connection:
            yield connection
        return
    with chosen as control:
        yield Connection(control, control, DEFAULT_NAMESPACE)


def choose_way(where: Where) -> ControlApi | Context:
    """The order of this module's head."""
    is_cluster_named = where.kubeconfig is not None or where.context is not None
    if sum((where.url is not None, where.state is not None, is_cluster_named)) > 1:
        words = "give one of --url, --state and --kubeconfig/--context: each names a fleet"
        raise CommandError(words, ExitCode.WRONG_USE)
    if where.url is not None:
        return RemoteControl(where.url)
    if where.state is not None:
        return Control(where.state)
    if is_cluster_named:
        return observe_context(where.kubeconfig, where.context)
    if url := os.environ.get(URL_VARIABLE):
        return RemoteControl(url)
    return _choose_unnamed(where)


def _choose_unnamed(where: Where) -> ControlApi | Context:
    named = os.environ.get(STATE_VARIABLE)
    if where.prefers_kubernetes and has_kubeconfig():
        context = observe_context(None, None)
        if named:
            _say(f"using context '{context.name}' ({context.server}), and not {STATE_VARIABLE}; --state names that")
        return context
    control = Control(default_state_folder())
    if named:
        return control
    # A controller that is being started is meant no less: what was asked of this machine must not reach a cluster.
    if control.is_there() or is_kept_up(control.state):
        if os.environ.get("KUBECONFIG"):
            _say(f"using the Covey of this machine ('{control.state}'), and not KUBECONFIG; --context names a cluster")
        return control
    if has_kubeconfig():
        context = observe_context(None, None)
        _say(f"no Covey runs on this machine: using context '{context.name}' ({context.server})")
        return context
    return control


def _say(words: str) -> None:
    click.echo(f"covey: {words}", err=True)
