"""`make bench [ONLY=peers]`: runs benchmarks one after the other and writes what they printed into the page.

One that fails or takes too long is ended, said on the page, and the next one runs. What wasn't run keeps its figures
and their day. The page is written after each, so that a run that is ended has kept what it measured.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import psutil

from whole.catalogue import BENCHES, Bench
from whole.page import replace_measured
from whole.plots import write_plots
from whole.records import Line, Record, merge, read_records, write_records

ROOT = Path(__file__).parents[2]
PAGE, RECORDS = (ROOT / "docs" / "reference" / name for name in ("benchmarks.md", "benchmarks.json"))
PLOTS = ROOT / "bench" / "plots"
# One that was told to end must end its own children.
END_SECONDS = 20
LAST_WORDS = 300


def main() -> int:
    names = [bench.name for bench in BENCHES]
    parser = argparse.ArgumentParser(prog="make bench", description="Measure, and write docs/reference/benchmarks.md.")
    parser.add_argument("--only", action="append", choices=names, help="this one alone; repeatable")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the page from what was measured")
    given = parser.parse_args()
    records, failed = read_records(RECORDS), 0
    began = time.monotonic()
    for bench in () if given.page else (each for each in BENCHES if each.name in (given.only or names)):
        print(f"{bench.name}: {bench.command} (at most {bench.seconds:.0f} s)", flush=True)
        record = merge(bench, records.get(bench.name), measure(bench))
        print(f"  {record.seconds:.0f} s; {record.outcome or 'done'}", flush=True)
        failed += bool(record.outcome)
        records[bench.name] = record
        write(records)
    write(records)
    print(f"{time.monotonic() - began:.0f} s in all; {failed} failed. Written: {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


def write(records: Mapping[str, Record]) -> None:
    write_records(RECORDS, records)
    write_plots(PLOTS, records)
    PAGE.write_text(replace_measured(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")


def measure(bench: Bench) -> Record:
    """In a group of processes of its own, so that what it started ends with it."""
    command = [sys.executable, str(ROOT / "bench" / (bench.script or f"{bench.name}.py")), *bench.arguments]
    path = os.pathsep.join(str(ROOT / name) for name in ("tests", "bench"))
    environment = {**os.environ, "PYTHONPATH": path, **bench.environment}
    before, began = os.getloadavg()[0], time.monotonic()
    day = time.strftime("%Y-%m-%d", time.gmtime())
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=bench.seconds)
            outcome = _judge(bench, process.returncode, errors)
        except subprocess.TimeoutExpired:
            output, errors = _end(process)
            outcome = f"it took more than {bench.seconds:.0f} s and was ended"
        except BaseException:
            _end(process)
            raise
    lines = [line | {"measured": day} for line in parse_lines(output)]
    skipped = [str(line["skipped"]) for line in lines if "skipped" in line]
    seconds = round(time.monotonic() - began, 1)
    loads = round(before, 1), round(os.getloadavg()[0], 1)
    return Record(day, describe_machine(), seconds, *loads, outcome or "; ".join(skipped), lines)


def _judge(bench: Bench, code: int, errors: str) -> str:
    if code == 0 or (code == 1 and bench.judges and "Traceback" not in errors):
        return ""
    said = errors.strip().splitlines()
    return f"it ended with code {code}: {said[-1][:LAST_WORDS] if said else 'it said nothing'}"


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """As Ctrl-C does, so that it removes what it made; then by force, with all that it started."""
    _signal_all(process, signal.SIGINT)
    try:
        return process.communicate(timeout=END_SECONDS)
    except BaseException as error:  # one who is asked to end a second time doesn't wait
        _signal_all(process, signal.SIGKILL)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return process.communicate()


def _signal_all(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def parse_lines(output: str) -> list[Line]:
    """The JSON objects among the lines."""
    found: list[Line] = []
    for text in output.splitlines():
        with suppress(ValueError):
            line: object = json.loads(text)
            if isinstance(line, dict):
                found.append(cast(Line, line))
    return found


def describe_machine() -> str:
    models = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    cores = f"{os.cpu_count()} of {models[0] if models else platform.machine()}"
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{cores}, {memory:.0f} GiB, {system}, Python {platform.python_version()}"


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
