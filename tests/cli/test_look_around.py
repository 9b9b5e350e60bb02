"""Ask for help, look at the machine, list and show problems, export a candidate."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cuda_agent.cli import doctor
from cuda_agent.cli.app import app
from cuda_agent.errors import ToolkitError
from cuda_agent.gates.toolkit import discover
from cuda_agent.problems.loader import load_suite
from tests.cli.commands import KERNEL, PROBLEM, run, write_candidate, write_problem

IMPORTED = """
import sys
from cuda_agent.cli import main
try:
    main()
finally:
    print(*sorted(set(sys.modules) & {"torch", "numpy", "tree_sitter", "cuda_agent.assemble"}), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["judge", "--help"], ["problems", "list", "--help"], ["--version"]])
def test_help_loads_neither_torch_nor_the_system(arguments: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.strip()) == (0, "")


BARE = "import typer; app = typer.Typer(rich_markup_mode=None); app.command()(lambda: None); app()"
"""The least that any command line of this kind does."""


def work_s(code: str) -> float:
    """Return the processor time of `code --help`, the best of three: other work on the machine is not its fault."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def test_help_answers_in_less_than_0_4_seconds_of_work() -> None:
    # A machine on which nothing at all takes half of that is slower than the limit is meant for.
    assert work_s(IMPORTED) < max(0.4, 2 * work_s(BARE))


def test_arguments_that_can_not_be_parsed_still_give_one_json_object() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED, "judge", "--json"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert '"kind": "UsageError"' in ran.stdout
    assert "Missing argument 'PROBLEM'" in ran.stderr


def test_no_command_loads_torch_into_its_own_process() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED, "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert "torch" not in ran.stderr


def test_the_doctor_names_every_part_and_can_judge_where_the_compilers_are() -> None:
    try:
        discover()
    except ToolkitError as error:
        pytest.skip(f"the compilers are looked for: {error}")
    ran = run("doctor")
    assert (ran.code, ran.result["able"]) == (0, True)
    parts = {finding["part"]: finding["status"] for finding in ran.result["findings"]}
    assert {"Python", "torch", "host compiler", "CUDA compiler", "emulated", "cache", "shared memory"} <= set(parts)
    assert "missing" not in parts.values()
    assert ran.result["conclusion"].startswith("Candidates can be judged here")


def test_the_doctor_says_how_to_get_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_NVCC", "/bin/false")
    ran = CliRunner().invoke(app, ["doctor", "--toolkit"])
    assert ran.exit_code == 3
    assert "pip install 'cuda-agent[toolkit]'" in " ".join(ran.stdout.split())
    assert "put right: CUDA compiler." in ran.stdout


def test_the_doctor_notices_a_cache_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "file" / "cache"))
    finding = doctor._cache()
    assert (finding.status, finding.advice) == ("missing", "Choose another folder with $CUDA_AGENT_CACHE.")


def test_the_list_has_every_built_in_problem_with_its_family() -> None:
    ran = run("problems", "list")
    assert ran.code == 0
    assert [entry["name"] for entry in ran.result["problems"]] == [problem.name for problem in load_suite("builtin")]
    assert all(entry["family"] and entry["title"] and entry["broken"] is None for entry in ran.result["problems"])


def test_a_broken_file_is_listed_with_its_reason_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "level2").mkdir()
    write_problem(tmp_path / "level2", PROBLEM, "10_good.py")
    write_problem(tmp_path / "level2", PROBLEM.replace("def get_inputs", "def inputs"), "2_lacks.py")
    write_problem(tmp_path / "level2", "def broken(:\n", "1_syntax.py")
    (tmp_path / "level2" / "3_bytes.py").write_bytes(b"\xff\xfe")
    write_problem(tmp_path, "x = 1\n", "not_meant_as_one.py")
    ran = run("problems", "list", tmp_path)
    assert ran.code == 0
    listed = [(entry["name"], entry["level"], entry["broken"] or "") for entry in ran.result["problems"]]
    assert [(name, level) for name, level, _ in listed] == [
        ("level2/1_syntax", 2),
        ("level2/2_lacks", 2),
        ("level2/3_bytes", 2),
        ("level2/10_good", 2),
    ]
    for (_, _, reason), wanted in zip(listed, ("not Python (line 1)", "get_inputs is missing", "not UTF-8 text", "")):
        assert wanted in reason


def test_a_suite_that_is_not_there_says_what_would_be_one() -> None:
    ran = run("problems", "list", "nowhere")
    assert ran.code == 2
    assert ran.message == ("nowhere: there is no such suite. Use builtin, a directory, or a .jsonl or .parquet file.")


def test_showing_a_problem_runs_it_and_gives_its_shapes() -> None:
    ran = run("problems", "show", "softmax")
    assert ran.code == 0
    cases = ran.result["description"]["cpu_cases"]
    assert [case["inputs"][0]["shape"] for case in cases] == [[16, 1024], [5, 1027], [33, 130], [1, 4099]]
    text = CliRunner().invoke(app, ["problems", "show", "softmax"]).stdout
    assert "return torch.softmax(x, dim=-1)" in text
    assert re.search(r"GPU default +float32\[16384, 16384\] -> float32\[16384, 16384\]  \(declared\)", text)


def test_exporting_writes_a_package_once(tmp_path: Path) -> None:
    candidate = write_candidate(tmp_path / "candidate")
    first = CliRunner().invoke(app, ["export", str(candidate), str(tmp_path / "fast")])
    assert (first.exit_code, first.stdout.splitlines()[1]) == (
        0,
        "use it:  from fast import ModelNew  (it builds its kernels at first import)",
    )
    before = sorted(path.name for path in (tmp_path / "fast").iterdir())
    second = CliRunner().invoke(app, ["export", str(candidate), str(tmp_path / "fast")])
    assert second.exit_code == 2
    assert f"{tmp_path / 'fast'}: it already exists. Name a new folder, or remove this one first." in second.stderr
    assert sorted(path.name for path in (tmp_path / "fast").iterdir()) == before


@pytest.mark.parametrize(
    ("kernel", "name", "code", "says"),
    [
        (KERNEL, "my-kernel", 2, "a package called 'my-kernel' can't be imported in Python. Call it"),
        (KERNEL.replace("cudaStream_t", "int"), "fast", 1, "define no launcher"),
        ("", "fast", 2, "there is no such folder"),
    ],
)
def test_what_can_not_be_exported_is_refused_and_nothing_is_written(
    tmp_path: Path, kernel: str, name: str, code: int, says: str
) -> None:
    if kernel:
        write_candidate(tmp_path / "candidate", kernel=kernel)
    before = sorted(tmp_path.iterdir())
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "candidate"), str(tmp_path / name)])
    assert ran.exit_code == code
    assert says in ran.stderr
    assert sorted(tmp_path.iterdir()) == before
