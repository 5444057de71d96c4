"""What the gateway is started with."""

import pytest
from covey_gateway.main import parse_options


@pytest.mark.parametrize("seconds", ["-1", "3601"])
def test_seconds_of_a_stop_are_bounded(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--table", "t", f"--drain-seconds={seconds}"])
    assert "from 0 to 3600" in capsys.readouterr().err


def test_who_means_workers_is_told_how_to_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--table", "t", "--worker", "4"])
    assert ended.value.code == 2
    assert "`--workers N`" in capsys.readouterr().err
