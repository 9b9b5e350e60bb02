"""A run's results survive interruptions, and a wrong folder is refused without touching it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cuda_agent.errors import UserError
from cuda_agent.records.problem import Problem
from cuda_agent.records.run import RUN_SCHEMA_VERSION, Run
from cuda_agent.store.cache_folder import cache_folder
from cuda_agent.store.journal import Journal
from cuda_agent.store.run_folder import RunFolder


class Entry(msgspec.Struct, frozen=True):
    number: int


def a_run() -> Run:
    problem = Problem(id="0" * 16, name="p", source="x = 1\n", origin="test")
    return Run(
        schema_version=RUN_SCHEMA_VERSION,
        purpose="optimize",
        created="2026-01-01T00:00:00Z",
        problem=problem,
        device="emulated",
        protocol="strict",
        policy="composer",
        seed=7,
        turn_limit=10,
        time_limit_s=60,
    )


def test_a_torn_last_line_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log.jsonl", Entry)
    journal.append(Entry(1))
    journal.append(Entry(2))
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(b'{"numb')
    assert journal.read() == [Entry(1), Entry(2)]
    journal.append(Entry(3))
    assert journal.read() == [Entry(1), Entry(2), Entry(3)]


def test_a_torn_first_line_leaves_an_empty_journal(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"numb')
    journal = Journal(tmp_path / "log.jsonl", Entry)
    assert journal.read() == []
    journal.append(Entry(5))
    assert journal.read() == [Entry(5)]


def test_a_changed_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"number": 1}\n{"number": "two"}\n')
    with pytest.raises(UserError, match=r"line 2 is not a Entry"):
        Journal(tmp_path / "log.jsonl", Entry).read()


def test_a_run_is_read_back_as_it_was_created(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", a_run())
    assert RunFolder.open(tmp_path / "run").run == a_run()


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match=r"already exists and is not empty"):
        RunFolder.create(tmp_path, a_run())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_of_another_schema_version_is_refused_by_number(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", a_run())
    text = (folder.path / "run.json").read_text()
    (folder.path / "run.json").write_text(text.replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(UserError, match=r"schema version 99"):
        RunFolder.open(folder.path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CUDA_AGENT_CACHE": "/a/b"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/cuda-agent"),
        ({"CUDA_AGENT_CACHE": "/a", "XDG_CACHE_HOME": "/x"}, "/a"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_AGENT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
