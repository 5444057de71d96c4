"""Flags of the controller's process that exclude each other, and the extra that may be missing."""

import subprocess
import sys

import pytest
from covey_controller.kube_options import KubeOptions
from covey_controller.main import parse_options

# Nothing of the extra can be imported, as where it isn't installed.
WITHOUT_EXTRA = """
import sys
for name in ("kopf", "aiohttp"):
    sys.modules[name] = None
from covey_controller.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_flags_of_kubernetes_mode_say_where_it_listens_and_who_may_join() -> None:
    given = ["--kube", "--state=/s", "--namespace=n", "--fleet-name=a.svc", "--fleet-name=b", "--agent-namespace=x"]
    store = parse_options([*given, "--probe-listen=0.0.0.0:8080"]).store
    assert isinstance(store, KubeOptions)
    assert (store.namespace, store.fleet_names, store.agent_namespaces) == ("n", ("a.svc", "b"), ("x",))
    assert (store.control, store.probe) == (("127.0.0.1", 52413), ("0.0.0.0", 8080))  # noqa: S104 - a flag's text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "either `--source SOURCE` or `--kube` must be given"),
        (["--kube", "--source=."], "either `--source SOURCE` or `--kube` must be given"),
        (["--kube", "--allow-empty"], "`--allow-empty` is for `--source`"),
        (["--kube", "--control-listen=x"], "`--control-listen` must be 'HOST:PORT'; got 'x'"),
    ],
)
def test_flags_that_contradict_each_other_are_wrong_use_in_words(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(["--state=/s", *given])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_kubernetes_mode_without_its_extra_names_what_to_install(tmp_path: object) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRA, "--kube", f"--state={tmp_path}/s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "`--kube` needs the extra `covey-controller[kube]`" in done.stderr
    assert "Traceback" not in done.stderr
