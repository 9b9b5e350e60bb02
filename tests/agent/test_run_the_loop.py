"""The loop around any policy: tools and their mistakes, budgets, promotion, resuming."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import UserError
from cuda_agent.policies.scripted import Scripted
from cuda_agent.records.episode import Ending, ToolCall
from cuda_agent.records.verdict import Passed, WrongOutput
from cuda_agent.store.run_folder import RunFolder
from tests.agent.running import go_on, optimize

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x
def get_inputs(): return [torch.randn(5, 33)]
def get_init_inputs(): return []
"""
MODEL = """
import torch
from cuda_extension import scale_launcher
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scale_launcher(x, y, x.numel())
        return y
"""
KERNEL = """
__global__ void scale_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
extern "C" int scale_launcher(const float* x, float* y, int n, cudaStream_t stream) {
  scale_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
  return cudaGetLastError();
}
"""


def write(path: str, text: str) -> ToolCall:
    return ToolCall(tool="write", arguments={"path": path, "text": text})


def edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall(tool="edit", arguments={"path": path, "old": old, "new": new})


GOOD = [write("model_new.py", MODEL), write("kernels/scale.cu", KERNEL)]
SUBMIT = ToolCall(tool="submit")


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "double.py"
    path.write_text(PROBLEM)
    return str(path)


def run(problem: str, path: Path, calls: list[ToolCall], **budget: float) -> tuple[Ending, list[str], list[bool]]:
    script = Scripted(calls)
    ending, turns = optimize(problem, path, policy=script, **budget)  # type: ignore[arg-type]
    return ending, [turn.result.text for turn in turns], [turn.result.ok for turn in turns]


def test_every_tool_answers_and_mistakes_are_answers(problem: str, tmp_path: Path) -> None:
    calls = [
        ToolCall(tool="list"),
        *GOOD,
        ToolCall(tool="list"),
        ToolCall(tool="read", arguments={"path": "kernels/scale.cu"}),
        ToolCall(tool="compiel"),
        ToolCall(tool="read", arguments={"path": "kernels/other.cu"}),
        write("../outside.py", "x"),
        write("notes.txt", "x"),
        ToolCall(tool="write", arguments={"path": "model_new.py"}),
        edit("kernels/scale.cu", "2.0f", "3.0f"),
        edit("kernels/scale.cu", "scale", "x"),
        ToolCall(tool="verify"),
        edit("kernels/scale.cu", "3.0f * x[i]", "2.0f * x[i]"),
        edit("kernels/scale.cu", "if (i < n)", "if (i < n"),
        ToolCall(tool="compile"),
        edit("kernels/scale.cu", "if (i < n", "if (i < n)"),
        ToolCall(tool="compile"),
        ToolCall(tool="verify"),
        ToolCall(tool="profile"),
        SUBMIT,
    ]
    ending, texts, _ = run(problem, tmp_path / "run", calls)
    expected = [
        "The workspace is empty.",
        "wrote model_new.py: 8 lines",
        "wrote kernels/scale.cu: 9 lines",
        "kernels/scale.cu (",
        "__global__ void scale_kernel",
        "Did you mean compile?",
        "There are: kernels/scale.cu, model_new.py.",
        "a candidate's files are model_new.py and files below kernels/",
        "a candidate's files are model_new.py and files below kernels/",
        "takes these arguments, all text: path, text. Found: path.",
        "wrote kernels/scale.cu",
        "occurs 3 times; it must occur exactly once",
        "wrong-output at verify",
        "wrote kernels/scale.cu",
        "wrote kernels/scale.cu",
        "kernels/scale.cu:4",
        "wrote kernels/scale.cu",
        "It builds.",
        "Correct in ",
        "not measured",
        "not measured",
    ]
    for text, part in zip(texts, expected, strict=True):
        assert part in text
    assert ending.reason == "submitted"
    assert not (tmp_path / "outside.py").exists()


def test_an_instruction_the_emulated_device_lacks_is_an_answer_that_names_it(problem: str, tmp_path: Path) -> None:
    matrix = edit("kernels/scale.cu", "if (i < n)", 'asm volatile("wgmma.fence.sync.aligned;"); if (i < n)')
    ending, texts, ok = run(problem, tmp_path / "run", [*GOOD, matrix, ToolCall(tool="verify")])
    assert ok == [True, True, True, False]
    assert "wgmma.fence.sync.aligned" in texts[-1]
    assert "kernels/scale.cu:4" in texts[-1]
    assert "not supported on the emulated device" in texts[-1]
    assert ending.reason == "submitted"


def test_only_a_strictly_better_candidate_replaces_the_best(problem: str, tmp_path: Path) -> None:
    calls = [
        *GOOD,
        edit("kernels/scale.cu", "2.0f", "3.0f"),
        SUBMIT,
        edit("kernels/scale.cu", "3.0f", "2.0f"),
        SUBMIT,
        edit("kernels/scale.cu", "256, 0", "128, 0"),
        SUBMIT,
    ]
    ending, _, ok = run(problem, tmp_path / "run", calls)
    assert ok == [True, True, True, False, True, True, True, False]
    assert ending.best is not None
    assert ending.best.candidate.files["kernels/scale.cu"] == KERNEL
    assert isinstance(ending.best.verdict, Passed)
    assert ending.final is not None
    assert isinstance(ending.final.verdict, WrongOutput)
    assert (tmp_path / "run" / "best" / "kernels" / "scale.cu").read_text() == KERNEL
    assert len(list((tmp_path / "run" / "verdicts").glob("*.json"))) == 3


def test_a_used_up_budget_still_judges_what_was_written(problem: str, tmp_path: Path) -> None:
    ending, texts, _ = run(problem, tmp_path / "run", [*GOOD, *[ToolCall(tool="list")] * 9], turns=4)
    assert (ending.reason, len(texts)) == ("turn budget", 4)
    assert ending.note == "The budget of 4 turns is used up. What the workspace held was judged as it was."
    assert ending.best is not None


def test_a_used_up_budget_with_half_a_candidate_says_so(problem: str, tmp_path: Path) -> None:
    ending, _, _ = run(problem, tmp_path / "run", [GOOD[0], *[ToolCall(tool="list")] * 9], turns=2)
    assert ending.note == "The budget of 2 turns is used up. The workspace holds no whole candidate."
    assert ending.best is None


class Interrupted(Scripted):
    """Stops the program before a turn, as Ctrl-C does."""

    def __init__(self, calls: list[ToolCall], before: int) -> None:
        super().__init__(calls)
        self._before = before

    def begin(self, briefing, past):  # type: ignore[no-untyped-def]
        script = super().begin(briefing, past)
        number = 0

        class Cut:
            @staticmethod
            def next(result):  # type: ignore[no-untyped-def]
                nonlocal number
                number += 1
                if number == self._before:
                    raise KeyboardInterrupt
                return script.next(result)

        return Cut()


def test_an_interrupted_episode_goes_on_where_it_was(problem: str, tmp_path: Path) -> None:
    calls = [*GOOD, ToolCall(tool="compile"), SUBMIT]
    with pytest.raises(KeyboardInterrupt):
        optimize(problem, tmp_path / "run", policy=Interrupted(calls, before=3))
    folder = RunFolder.open(tmp_path / "run")
    with (tmp_path / "run" / "episode.jsonl").open("ab") as file:
        file.write(b'{"number": 3, "call": {"to')  # a turn that was being written
    assert len(folder.turns.read()) == 2
    assert folder.ending() is None
    ending = go_on(folder, Scripted(calls))
    assert ending.reason == "submitted"
    assert [turn.call for turn in folder.turns.read()] == calls
    assert ending.best is not None


def test_another_script_is_not_the_one_that_was_interrupted(problem: str, tmp_path: Path) -> None:
    turns = [*GOOD]
    optimize(problem, tmp_path / "run", policy=Scripted(turns))
    past = RunFolder.open(tmp_path / "run").turns.read()
    with pytest.raises(UserError, match="not the beginning of this script"):
        Scripted([SUBMIT]).begin(None, past)  # type: ignore[arg-type]
