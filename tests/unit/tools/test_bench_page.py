"""The page of measured figures: only what was measured has a number, and says how it was and whether it holds."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.processes import is_running, wait_for
from whole.__main__ import PAGE, RECORDS, measure, parse_lines
from whole.catalogue import BENCHES, Bench, Figure
from whole.page import BEGIN, END, replace_measured
from whole.records import Line, Record, merge, observe_value, read_records

ROOT = Path(__file__).parents[3]
PEERS = next(bench for bench in BENCHES if bench.name == "peers")


def record(*lines: Line, outcome: str = "", day: str = "2026-11-30") -> Record:
    return Record(day, "2 of something", 1.0, 0.1, 0.2, outcome, [{"measured": day, **line} for line in lines])


def peer(name: str, value: float) -> Line:
    return {"bench": "peers", "figure": "cpu_per_request_us", "peer": name, "value": value}


def test_page_in_git_is_what_its_records_say() -> None:
    page = PAGE.read_text()
    assert page == replace_measured(page, read_records(RECORDS)), "`make bench` wrote one and not the other"


def test_every_benchmark_has_a_script_and_its_name_once() -> None:
    assert len({bench.name for bench in BENCHES}) == len(BENCHES)
    for bench in BENCHES:
        script = shlex.split(bench.command)[len(bench.environment) + 1]
        assert (ROOT / script).is_file(), bench.name
        titles = [figure.title for figure in bench.figures]
        assert len(set(titles)) == len(titles), bench.name


def test_every_script_of_the_benchmarks_is_run() -> None:
    run = {bench.script or f"{bench.name}.py" for bench in BENCHES}
    assert {path.name for path in (ROOT / "bench").glob("*.py")} - run == {"simulated_agents.py"}


def test_figures_that_were_not_measured_have_no_number() -> None:
    page = replace_measured(f"a\n{BEGIN}\nwhat was there\n{END}\nb\n", {"peers": record(peer("nginx", 20.0))})
    assert "| CPU of a request: nginx |  | 20 µs |  |  |" in page
    assert "| CPU of a request beside nginx's | ≤ 2.2 times | not measured | | |" in page
    assert "`python bench/kube.py`: not run yet by `make bench`. Bounds: apply" in page
    assert page.startswith("a\n")
    assert page.endswith("\nb\n")
    assert "what was there" not in page


def test_a_ratio_is_of_medians_and_judged_by_its_bound() -> None:
    lines = [
        peer("covey", 44.0),
        peer("nginx", 18.0),
        peer("nginx", 20.0),
        peer("nginx", 90.0),
        peer("vllm-router", 40.0),
    ]
    page = replace_measured(BEGIN + END, {"peers": record(*lines)})
    assert "| CPU of a request beside nginx's | ≤ 2.2 times | 2.2 times | held |  |" in page
    assert "| CPU of a request beside vllm-router's | ≤ 0.9 times | 1.1 times | **not held** |  |" in page
    assert "| CPU of a request: nginx |  | 20 µs (18 to 90) |  |  |" in page


def test_a_least_is_held_above_it() -> None:
    figure = Figure("rate", {"a": 1}, bound=70.0, is_least=True, scale=100)
    for value, is_held in ((0.7, True), (0.9, True), (0.69, False)):
        found = observe_value(figure, record({"a": 1, "value": value}).lines)
        assert found is not None
        assert found.is_held(figure) is is_held


def test_what_a_failed_run_did_not_come_to_keeps_its_day() -> None:
    before = record(peer("nginx", 20.0), peer("covey", 60.0), day="2026-11-01")
    now = merge(PEERS, before, record(peer("nginx", 30.0), outcome="it ended with code 1: no router"))
    page = replace_measured(BEGIN + END, {"peers": now})
    assert "**This run failed**: it ended with code 1: no router" in page
    assert "| CPU of a request: nginx |  | 30 µs |  |  |" in page
    assert "| CPU of a request: covey |  | 60 µs |  | 2026-11-01 |" in page
    whole = merge(PEERS, before, record(peer("nginx", 30.0)))
    assert "60 µs" not in replace_measured(BEGIN + END, {"peers": whole})


def test_no_figure_mixes_what_two_runs_measured() -> None:
    ratio, covey = "| CPU of a request beside nginx's | ≤ 2.2 times |", "| CPU of a request: covey |  |"
    before = record(peer("nginx", 20.0), peer("covey", 60.0), day="2026-11-01")
    now = merge(PEERS, before, record(peer("covey", 30.0), outcome="it ended with code 1: no nginx"))
    page = replace_measured(BEGIN + END, {"peers": now})
    assert f"{ratio} 3 times | **not held** | 2026-11-01 |" in page, "of the run that measured both"
    assert f"{covey} 30 µs |  |  |" in page
    assert "| CPU of a request: nginx |  | 20 µs |  | 2026-11-01 |" in page
    # Once more on that day: the newest of each, and no more of what is older than that.
    again = merge(PEERS, now, record(peer("covey", 32.0), outcome="it ended with code 1: no nginx"))
    page = replace_measured(BEGIN + END, {"peers": again})
    assert f"{ratio} 3 times | **not held** | 2026-11-01 |" in page
    assert f"{covey} 32 µs |  |  |" in page
    assert len(again.lines) == 3


def test_what_another_machine_measured_is_not_kept() -> None:
    before = record(peer("nginx", 20.0), day="2026-11-01")
    before.machine = "64 of something else"
    now = merge(PEERS, before, record(peer("covey", 30.0), outcome="it ended with code 1: no nginx"))
    assert [line["peer"] for line in now.lines] == ["covey"]


@pytest.mark.parametrize(
    ("script", "seconds", "judges", "outcome"),
    [
        ("print('{\"a\": 1}')", 30.0, False, ""),
        (
            "print('{\"a\": 1}', flush=True); raise SystemExit('no engine')",
            30.0,
            False,
            "it ended with code 1: no engine",
        ),
        ("print('{\"a\": 1}'); raise SystemExit(1)", 30.0, True, ""),
        (
            "import time; print('{\"a\": 1}', flush=True); time.sleep(600)",
            3.0,
            False,
            "it took more than 3 s and was ended",
        ),
    ],
)
def test_a_benchmark_that_fails_or_hangs_is_ended_and_keeps_what_it_printed(
    script: str, seconds: float, judges: bool, outcome: str, tmp_path: Path
) -> None:
    path = tmp_path / "bench.py"
    path.write_text(script)
    found = measure(Bench("x", "x", (), seconds, script=str(path), judges=judges))
    assert found.outcome == outcome
    assert [line["a"] for line in found.lines] == [1]


def test_lines_that_are_no_figures_are_passed_over() -> None:
    assert parse_lines('loading\n{"a": 1}\n3\n[1]\n{"b"') == [{"a": 1}]


def test_a_run_that_is_interrupted_ends_the_benchmark_and_what_that_started(tmp_path: Path) -> None:
    """In a session of its own it hears no Ctrl-C."""
    path, pids = tmp_path / "bench.py", tmp_path / "pids"
    path.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"told = pathlib.Path({str(pids)!r})\n"
        "told.with_suffix('.new').write_text(f'{os.getpid()} {child.pid}')\n"
        "told.with_suffix('.new').rename(told)\n"
        "time.sleep(600)\n"
    )
    words = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored in the background
        "from whole.__main__ import measure; from whole.catalogue import Bench; "
        f"measure(Bench('x', 'x', (), 600.0, script={str(path)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    with subprocess.Popen([sys.executable, "-c", words], env=environment, stderr=subprocess.DEVNULL) as run:
        try:
            wait_for(pids.exists, "the benchmark runs", 60)
            started = [int(pid) for pid in pids.read_text().split()]
            run.send_signal(signal.SIGINT)
            assert run.wait(60) != 0
        finally:
            run.kill()
    wait_for(lambda: not any(map(is_running, started)), "all that was started ends", 60)
