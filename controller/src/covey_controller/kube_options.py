"""The flags of Kubernetes mode, and what must hold between them."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from covey_controller.addresses import parse_address

DEFAULT_CONTROL_LISTEN = "127.0.0.1:52413"


@dataclass(frozen=True, slots=True)
class KubeOptions:
    namespace: str
    """The controller's own; empty: the one that the login names."""
    kubeconfig: Path | None
    """None: as the pod's ServiceAccount."""
    control: tuple[str, int]
    probe: tuple[str, int] | None
    advertise: str
    """Where other replicas reach this one; empty: an address of this machine."""
    fleet_names: tuple[str, ...]
    agent_namespaces: tuple[str, ...]


# Flags that say something of a source of files.
_FILES_FLAGS = ("allow_empty", "push", "poll_seconds", "webhook_listen", "webhook_secret_file", "age_key_file")


def add_kube_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kube", action="store_true", help="the objects are in Kubernetes")
    group = parser.add_argument_group("Kubernetes mode, with --kube")
    group.add_argument("--namespace", default="", metavar="NS", help="the controller's own (default: the login's)")
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="log in by it (default: as the pod)")
    group.add_argument(
        "--control-listen",
        default=DEFAULT_CONTROL_LISTEN,
        metavar="HOST:PORT",
        help="address of the control API (default: %(default)s)",
    )
    group.add_argument("--probe-listen", metavar="HOST:PORT", help="answer /healthz and /readyz there, without TLS")
    group.add_argument("--advertise", default="", metavar="HOST", help="where other replicas reach this one")
    group.add_argument(
        "--fleet-name", action="append", default=[], metavar="NAME", help="a further name that agents dial; repeatable"
    )
    group.add_argument(
        "--agent-namespace",
        action="append",
        default=[],
        metavar="NS",
        help="let pods of this namespace join too; repeatable",
    )


def parse_kube_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> KubeOptions:
    """Wrong ones end the process with code 2."""
    for name in _FILES_FLAGS:
        if getattr(given, name):
            parser.error(f"`--{name.replace('_', '-')}` is for `--source`: in Kubernetes mode there are no files")
    return KubeOptions(
        namespace=given.namespace,
        kubeconfig=given.kubeconfig,
        control=parse_address(parser, "--control-listen", given.control_listen),
        probe=parse_address(parser, "--probe-listen", given.probe_listen) if given.probe_listen else None,
        advertise=given.advertise,
        fleet_names=tuple(given.fleet_name),
        agent_namespaces=tuple(given.agent_namespace),
    )
