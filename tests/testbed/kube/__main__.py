"""`python -m testbed.kube build|helm|up`: build the programs once; say how helm is started; run a control plane until
interrupted."""

import signal
import sys

from testbed.kube.controlplane import running_control_plane
from testbed.kube.programs import NoPrograms, component_command, tool_command


def main(arguments: list[str]) -> int:
    if arguments not in (["build"], ["helm"], ["up"]):
        sys.stderr.write("usage: python -m testbed.kube build|helm|up\n")
        return 2
    try:
        if arguments == ["helm"]:
            sys.stdout.write(f"{' '.join(tool_command('helm'))}\n")
            return 0
        sys.stdout.write(f"{component_command('etcd')[0]}\n")
        if arguments == ["build"]:
            sys.stdout.write(f"{tool_command('helm')[0]}\n")
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
