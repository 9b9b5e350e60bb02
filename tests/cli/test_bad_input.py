"""Give the commands what they can't use: each says what was asked, found and to do, with the exit code of whose move it is."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from cuda_agent.cli import judge as judge_command
from cuda_agent.errors import ToolkitError
from cuda_agent.gates import inspection
from cuda_agent.gates.devices import EMULATED
from cuda_agent.gates.toolkit import discover
from cuda_agent.records import codec
from tests.cli.commands import KERNEL, MODEL, PROBLEM, Ran, run, write_candidate, write_problem

REJECTED, USER, MACHINE = 1, 2, 3


@pytest.fixture
def compilers() -> None:
    try:
        discover()
    except ToolkitError as error:
        pytest.skip(f"a candidate is compiled: {error}")


def one_paragraph(message: str) -> bool:
    return "\n" not in message.strip() and message.strip().endswith((".", ")", "list"))


def optimize(problem: object, out: Path) -> Ran:
    return run("optimize", problem, "--device", "emulated", "--out", out)


def judge(problem: object, candidate: object, out: Path, *options: str) -> Ran:
    return run("judge", problem, candidate, "--out", out, *(options or ("--device", "emulated")))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("def get_inputs", "def get_input"), "get_inputs is missing (it defines get_input)"),
        (("class Model(", "class Net("), "Model is missing"),
        (
            ("import torch", "import torch\nraise ValueError('no weights')"),
            "raised ValueError at asked.py:3: no weights.",
        ),
        (
            ("import torch", "import torch\nimport nowhere_to_be_found"),
            "imports nowhere_to_be_found, which is not installed",
        ),
        (
            ("return x * 2", "return 'text'"),
            "must return a tensor (or a tuple, list or dict with tensors); it returned str",
        ),
        (("return x * 2", "return x * missing"), "raised NameError at asked.py:6: name 'missing' is not defined."),
        (("return [torch.randn(4, 8)]", "return 7"), "get_inputs() must return a list"),
        (
            ("import torch", "import torch\nimport os; os._exit(3)"),
            "before it was done. Run the file with python alone",
        ),
        (("import torch", "import torch\nx = ("), "not Python (line"),
    ],
    ids=[
        "no get_inputs",
        "no Model",
        "raises",
        "missing import",
        "no tensor",
        "raises in forward",
        "no list",
        "exits",
        "syntax",
    ],
)
def test_a_problem_that_can_not_be_used_is_the_users_to_fix(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    ran = optimize(write_problem(tmp_path, PROBLEM.replace(*change)), tmp_path / "run")
    assert (ran.code, ran.result["exit_code"]) == (USER, USER)
    assert says in ran.message
    assert one_paragraph(ran.message)
    assert ran.result["verdict"]["kind"] == "problem-fault"
    assert ran.result["reward"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["asked.py"]


@pytest.mark.parametrize(
    "change", [("import torch", "import torch\nwhile True: pass"), ("return x * 2", "while True: pass")]
)
def test_a_problem_that_hangs_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    monkeypatch.setattr(inspection, "INSPECT_LIMIT_S", 6.0)
    ran = optimize(write_problem(tmp_path, PROBLEM.replace(*change)), tmp_path / "run")
    assert ran.code == USER
    assert "took longer than 6 s. Look for an endless loop" in ran.message
    assert not (tmp_path / "run").exists()


def test_a_broken_problem_is_no_rejection_of_the_candidate(tmp_path: Path, compilers: None) -> None:
    problem = write_problem(tmp_path, PROBLEM.replace("return x * 2", "return None"))
    ran = judge(problem, write_candidate(tmp_path / "candidate"), tmp_path / "run")
    assert (ran.code, ran.result["reward"]) == (USER, None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "text", "row", "says"),
    [
        ("a.jsonl", '{"name": "a", "text": "print(1)"}\n', "#0", "no column holds problems; there are name, text"),
        ("a.jsonl", "{}\nnot json\n", "#0", "line 2 is not JSON"),
        ("a.jsonl", "", "#0", "the data set has no rows"),
        ("a.jsonl", "", "", "a data set holds many problems. Name one as"),
        ("a.parquet", "not parquet", "#0", "not readable as parquet"),
    ],
)
def test_a_data_set_without_problems_says_what_it_holds(
    tmp_path: Path, name: str, text: str, row: str, says: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    path = write_problem(tmp_path, text, name)
    ran = optimize(f"{path}{row}", tmp_path / "run")
    assert ran.code == USER
    assert says in ran.message
    assert str(path) in ran.message
    assert not (tmp_path / "run").exists()


def test_a_data_set_row_that_is_not_there_says_which_are(tmp_path: Path) -> None:
    path = write_problem(tmp_path, msgspec.json.encode({"code": PROBLEM}).decode(), "a.jsonl")
    ran = optimize(f"{path}#7", tmp_path / "run")
    assert (ran.code, ran.message) == (USER, f"{path}#7: the data set has 1 rows, numbered 0 to 0.")


def test_a_candidate_folder_without_a_model_is_the_users_mistake(tmp_path: Path) -> None:
    candidate = write_candidate(tmp_path / "candidate")
    (candidate / "model_new.py").unlink()
    ran = judge(write_problem(tmp_path), candidate, tmp_path / "run")
    assert ran.code == USER
    assert "it has no model_new.py; it holds kernels. A candidate is a folder with" in ran.message
    assert not (tmp_path / "run").exists()


def test_a_launcher_with_an_unknown_type_is_rejected_with_the_types_there_are(tmp_path: Path) -> None:
    candidate = write_candidate(
        tmp_path / "candidate", kernel=KERNEL.replace("int n, cuda", "std::vector<int> n, cuda")
    )
    ran = judge(write_problem(tmp_path), candidate, tmp_path / "run")
    assert (ran.code, ran.result["reward"]) == (REJECTED, -1)
    assert ran.message.startswith("kernels/twice.cu:7: launcher twice_launcher, parameter 3 `std::vector<int> n`: ")
    assert "A launcher takes pointers to void, " in ran.message


def test_two_launchers_of_one_name_are_rejected_with_both_places(tmp_path: Path) -> None:
    candidate = write_candidate(tmp_path / "candidate")
    (candidate / "kernels" / "again.cu").write_text(KERNEL)
    ran = judge(write_problem(tmp_path), candidate, tmp_path / "run")
    assert ran.code == REJECTED
    assert ran.message == (
        "Two launchers are named twice_launcher: kernels/again.cu:7 and kernels/twice.cu:7. Each is imported by its "
        "name, so rename one."
    )


def test_parameters_that_do_not_match_are_rejected_with_their_names(tmp_path: Path, compilers: None) -> None:
    own = "    def __init__(self):\n        super().__init__()\n        self.w = torch.nn.Parameter(torch.ones(3))\n\n    def forward"
    candidate = write_candidate(tmp_path / "candidate", model=MODEL.replace("    def forward", own))
    ran = judge(write_problem(tmp_path), candidate, tmp_path / "run")
    assert (ran.code, ran.result["verdict"]["check"]) == (REJECTED, "parameters")
    assert "ModelNew has what Model has not: w float32[3]. Give parameters and buffers the names" in ran.message
    assert (tmp_path / "run" / "best" / "evidence.json").is_file()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "cuda:99"), "--device cuda:99: this machine has"),
        (("--device", "gpu"), "--device gpu: not a device name. Use auto, emulated, or cuda:N"),
        (
            ("--device", "emulated", "--protocol", "lax"),
            "--protocol lax: there is no such protocol. Use strict or paper.",
        ),
    ],
)
def test_an_option_that_names_nothing_says_what_there_is(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    ran = judge(write_problem(tmp_path), write_candidate(tmp_path / "candidate"), tmp_path / "run", *options)
    assert ran.code == USER
    assert says in ran.message
    assert not (tmp_path / "run").exists()


def test_an_architecture_nvcc_does_not_know_says_which_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilers: None
) -> None:
    unknown = msgspec.structs.replace(EMULATED, architecture="compute_999")
    monkeypatch.setattr(judge_command, "open_device", lambda name: unknown)
    ran = judge(write_problem(tmp_path), write_candidate(tmp_path / "candidate"), tmp_path / "run")
    assert ran.code == USER
    assert ran.message.startswith("Architecture compute_999: nvcc ")
    assert "does not know it. It builds for sm_" in ran.message
    assert not (tmp_path / "run").exists()


def test_a_run_folder_in_use_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    for ran in (
        judge(write_problem(tmp_path), write_candidate(tmp_path / "candidate"), tmp_path / "run"),
        optimize(write_problem(tmp_path), tmp_path / "run"),
    ):
        assert ran.code == USER
        assert "it already exists and is not empty. Name another folder" in ran.message
    assert [(p.name, p.read_text()) for p in (tmp_path / "run").iterdir()] == [("notes.txt", "mine")]


def test_a_machine_without_compilers_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_NVCC", "/bin/false")
    ran = judge(write_problem(tmp_path), write_candidate(tmp_path / "candidate"), tmp_path / "run")
    assert (ran.code, ran.result["verdict"]["kind"]) == (MACHINE, "machine-fault")
    assert (
        "/bin/false does not run. Install the CUDA compiler as wheels with `pip install 'cuda-agent[toolkit]'`"
        in ran.said
    )
    assert not (tmp_path / "run").exists()


def test_a_disk_that_is_full_when_the_judgement_is_stored_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilers: None
) -> None:
    written = codec.write

    def full(path: Path, record: object) -> None:
        if path.name == "evidence.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written(path, record)

    monkeypatch.setattr(codec, "write", full)
    ran = judge(write_problem(tmp_path), write_candidate(tmp_path / "candidate"), tmp_path / "run")
    assert (ran.code, ran.result["reward"]) == (MACHINE, None)
    assert "No space left on device" in ran.message
    assert "free space or choose another folder with --out" in ran.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked.py", "candidate"]


def test_our_own_failure_is_not_taken_for_a_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("a broken invariant")

    monkeypatch.setattr(judge_command, "open_device", broken)
    ran = judge(write_problem(tmp_path), write_candidate(tmp_path / "candidate"), tmp_path / "run")
    assert (ran.code, ran.result["error"]["kind"]) == (MACHINE, "InternalError")
    assert "Traceback (most recent call last)" in ran.said
