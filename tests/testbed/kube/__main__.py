"""`python -m testbed.kube build|up`: build the programs once; or run a control plane until interrupted."""

import signal
import sys

from testbed.kube.controlplane import running_control_plane
from testbed.kube.programs import NoPrograms, component_command


def main(arguments: list[str]) -> int:
    if arguments not in (["build"], ["up"]):
        sys.stderr.write("usage: python -m testbed.kube build|up\n")
        return 2
    try:
        sys.stdout.write(f"{' '.join(component_command('etcd')[:1])}\n")
        if arguments == ["up"]:
            with running_control_plane() as plane:
                sys.stdout.write(f"export KUBECONFIG={plane.kubeconfig}\nCtrl-C ends it.\n")
                sys.stdout.flush()
                signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except NoPrograms as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
