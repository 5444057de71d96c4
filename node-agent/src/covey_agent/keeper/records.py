"""What a keeper leaves in its folder, parsed: `keeper.json` and `exit.json`, which the keeper writes untyped."""

from pathlib import Path
from typing import Any, TypeVar

from covey_api.meta import Message
from pydantic import ValidationError

from covey_agent.keeper.link import LinkError
from covey_agent.ports import EngineExit, EngineProcess


class KeeperRecord(Message):
    """Who runs: also the answer to `status` and `claim`."""

    pid: int
    start_time: str
    engine_pid: int
    engine_start_time: str
    instance_id: str
    attempt: int
    port: int
    front_port: int = 0

    @property
    def process(self) -> EngineProcess:
        return EngineProcess(self.attempt, self.port, self.engine_pid, self.identity, self.front_port)

    @property
    def identity(self) -> str:
        return f"{self.engine_pid}@{self.engine_start_time}"


class ExitRecord(Message):
    """How the engine ended."""

    attempt: int
    engine_pid: int
    engine_start_time: str
    status: int
    ended_by: str
    out_of_memory: bool
    tail: str
    why: str = ""

    @property
    def exit(self) -> EngineExit:
        identity = f"{self.engine_pid}@{self.engine_start_time}"
        return EngineExit(self.attempt, identity, self.status, self.ended_by, self.out_of_memory, self.tail, self.why)


Record = TypeVar("Record", bound=Message)


def read_record(path: Path, record: type[Record]) -> Record | None:
    """None when it is missing or broken: a machine that lost power may leave anything."""
    try:
        return record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def parse_answer(answer: dict[str, Any]) -> KeeperRecord:
    """The record in a keeper's answer to `claim`. LinkError when it holds none."""
    try:
        return KeeperRecord.model_validate(answer)
    except ValidationError as error:
        raise LinkError(f"the keeper's answer names no process: {error.errors()[0]['msg']}") from error


def read_text(path: Path) -> str:
    """Empty when it is missing or broken."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
