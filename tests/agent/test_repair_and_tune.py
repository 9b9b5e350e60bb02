"""What the composer does with the answers it gets: repair, tune, keep what is faster, stay within budgets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from cuda_agent.errors import UserError
from cuda_agent.policies.composer import Composer
from cuda_agent.policies.contract import Stop
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.episode import Briefing, ToolCall, ToolResult, Turn
from tests.agent.running import quiet_session

OK = ToolResult(ok=True, text="fine")


@pytest.fixture(scope="module")
def briefing() -> Briefing:
    with quiet_session(load_problem("softmax")) as session:
        found = session.briefing(turn_limit=60, time_limit_s=900.0)
    # A device on which there is time; nothing here asks it for any.
    return msgspec.structs.replace(found, device="cuda:0", architecture="sm_90a", multiprocessors=132)


def play(
    briefing: Briefing, answer: Callable[[ToolCall, dict[str, str]], ToolResult]
) -> tuple[list[Turn], dict[str, str], Stop]:
    """Let a composer work against `answer`; return its turns, the last files and its closing words."""
    conversation = Composer().begin(briefing, [])
    turns: list[Turn] = []
    files: dict[str, str] = {}
    result = None
    while True:
        call = conversation.next(result)
        if isinstance(call, Stop):
            return turns, files, call
        if call.tool == "write":
            files[call.arguments["path"]] = call.arguments["text"]
        result = answer(call, files)
        turns.append(Turn(number=len(turns) + 1, call=call, result=result))


def timed(speed: float) -> ToolResult:
    return ToolResult(ok=True, text="", data={"speedups": {"eager": speed}}, seconds=10.0)


def test_a_kernel_that_does_not_build_is_written_in_a_simpler_form(briefing: Briefing) -> None:
    def answer(call: ToolCall, files: dict[str, str]) -> ToolResult:
        if call.tool == "compile" and "const bool vector" in files["kernels/softmax.cu"]:
            return ToolResult(
                ok=False, text="no vectors here", data={"diagnostics": [{"file": "kernels/softmax.cu", "line": 3}]}
            )
        return timed(1.0) if call.tool == "profile" else OK

    turns, files, stop = play(msgspec.structs.replace(briefing, device="emulated"), answer)
    assert [turn.call.tool for turn in turns] == ["write", "write", "compile", "write", "compile", "verify", "submit"]
    assert "const bool vector" not in files["kernels/softmax.cu"]
    assert not stop.gave_up


def test_when_no_form_is_correct_the_last_reason_is_the_closing_word(briefing: Briefing) -> None:
    def answer(call: ToolCall, files: dict[str, str]) -> ToolResult:
        return ToolResult(ok=False, text="wrong-output at verify: off by one") if call.tool == "verify" else OK

    turns, _, stop = play(briefing, answer)
    assert [turn.call.tool for turn in turns].count("verify") == 3
    assert stop.gave_up
    assert stop.message.endswith("wrong-output at verify: off by one")
    assert "submit" not in [turn.call.tool for turn in turns]


def test_tuning_keeps_what_is_faster_and_takes_back_what_is_not(briefing: Briefing) -> None:
    def answer(call: ToolCall, files: dict[str, str]) -> ToolResult:
        if call.tool != "profile":
            return OK
        # Eight elements a thread is the fastest form.
        return timed(2.0 if "<4, 2, 32, false>" in files["kernels/softmax.cu"] else 1.5)

    turns, files, _ = play(briefing, answer)
    assert turns[-1].call.tool == "submit"
    assert "<4, 2, 32, false>" in files["kernels/softmax.cu"]
    assert "resident" not in files["model_new.py"]
    assert "softmax_kernel<N, ITEMS, THREADS, WHOLE>" in files["kernels/softmax.cu"]


def test_a_gain_within_noise_changes_nothing(briefing: Briefing) -> None:
    first: dict[str, str] = {}

    def answer(call: ToolCall, files: dict[str, str]) -> ToolResult:
        if call.tool == "compile":
            first.update(files)
        return timed(1.505 if files != first else 1.5) if call.tool == "profile" else OK

    _, files, _ = play(briefing, answer)
    assert files == first


@pytest.mark.parametrize(("turn_limit", "time_limit_s"), [(9, 900.0), (60, 12.0)])
def test_tuning_stops_in_time_for_the_submission(briefing: Briefing, turn_limit: int, time_limit_s: float) -> None:
    tight = msgspec.structs.replace(briefing, turn_limit=turn_limit, time_limit_s=time_limit_s)
    turns, _, stop = play(tight, lambda call, files: timed(1.0) if call.tool == "profile" else OK)
    assert turns[-1].call.tool == "submit"
    assert len(turns) <= turn_limit
    assert [turn.call.tool for turn in turns].count("profile") <= 2
    assert not stop.gave_up


def test_an_episode_taken_up_again_goes_on_with_the_same_calls(briefing: Briefing) -> None:
    turns, _, _ = play(briefing, lambda call, files: timed(1.0) if call.tool == "profile" else OK)
    for made in range(1, len(turns)):
        again = Composer().begin(briefing, turns[:made])
        call = again.next(turns[made - 1].result)
        assert isinstance(call, ToolCall)
        assert (call.tool, call.arguments) == (turns[made].call.tool, turns[made].call.arguments)


def test_turns_of_another_version_are_refused(briefing: Briefing) -> None:
    strange = Turn(number=1, call=ToolCall(tool="write", arguments={"path": "a.cu", "text": ""}), result=OK)
    with pytest.raises(UserError, match="Turn 1 of the stored run"):
        Composer().begin(briefing, [strange])
