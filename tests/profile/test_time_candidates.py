"""A candidate is timed beside its baselines, and what can't be trusted gets a verdict instead of a number."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cuda_agent.gates import contenders
from cuda_agent.gates.profile import ProfileGate, ProfileSettings
from cuda_agent.gates.protocols import PAPER, STRICT, VerifyProtocol
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.evidence import Device
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.stopwatch import BaselineRun, Fell, Prepare
from cuda_agent.records.timing import Speedup, Timing
from cuda_agent.records.verdict import (
    BrokeContract,
    Cheated,
    Crashed,
    MachineFault,
    Passed,
    ProblemFault,
    TimedOut,
    Verdict,
    WrongOutput,
)
from cuda_agent.rewards import milestones
from cuda_agent.sandbox.scripted import ScriptedSandbox
from tests.profile.scripted_stopwatch import CLOCK, Behaviour, Stage

PROBLEM = Problem(id="0123456789abcdef", name="p", source="", origin="test")
DEVICE = Device(name="cuda:7", model="NVIDIA H200", architecture="sm_90a", driver="580.1", multiprocessors=132)
CANDIDATE = Candidate(id="fedcba9876543210", form="native", files={"model_new.py": ""})
BUILD = Build(
    key="k",
    library="/nowhere/cuda_extension.so",
    target="cuda",
    architectures=("sm_90a",),
    launchers=(),
    resources=(),
    warnings=(),
    toolkit="nvcc",
    command="nvcc",
    seconds=1.0,
    cached=False,
)
SETTINGS = ProfileSettings(rounds=4, calls=3, limit_s=20.0)


def description(precision: Any = "fp32") -> ProblemDescription:
    return ProblemDescription(
        precision=precision,
        tolerance=None,
        cpu_cases=(),
        gpu_cases=(),
        fixed_shape=False,
        init_inputs=(),
        parameter_count=0,
        training=False,
    )


class Bench:
    """A profile gate over scripted stopwatches."""

    def __init__(self, folder: Path, **behaviours: Behaviour) -> None:
        self.cache = folder / "cache"
        self.stage = Stage({name.replace("_", "-"): behaviour for name, behaviour in behaviours.items()})
        self.sandbox = ScriptedSandbox({"stopwatch": self.stage})
        self.gate = ProfileGate(sandbox=self.sandbox, scratch=folder / "scratch", cache_folder=self.cache)
        self.scratch = folder / "scratch"
        self.said: list[str] = []

    def measure(
        self,
        *,
        protocol: VerifyProtocol = STRICT,
        settings: ProfileSettings = SETTINGS,
        precision: str = "fp32",
        seed: int = 5,
    ) -> Timing | Verdict:
        return self.gate.measure(
            PROBLEM,
            description(precision),
            CANDIDATE,
            BUILD,
            device=DEVICE,
            protocol=protocol,
            settings=settings,
            seed=seed,
            on_progress=self.said.append,
        )

    def timing(self, **options: Any) -> Timing:
        found = self.measure(**options)
        assert isinstance(found, Timing), found
        return found


def against(timing: Timing, baseline: str) -> Speedup:
    return next(speedup for speedup in timing.speedups if speedup.baseline == baseline)


def fell(stage: Any, *, out_of_memory: bool = False, error: str = "RuntimeError: boom") -> Fell:
    return Fell(stage=stage, out_of_memory=out_of_memory, error=error)


@pytest.fixture(autouse=True)
def scripted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # A loaded machine must not look like a contender that hides time.
    monkeypatch.setattr("cuda_agent.gates.contenders.time", CLOCK)


def usual(folder: Path, **behaviours: Behaviour) -> Bench:
    """Candidate 10 us, eager 20, compiled 15, max-autotune 12, unless said otherwise."""
    all_of_them = {
        "candidate": Behaviour(device_us=10, wall_us=30),
        "eager": Behaviour(device_us=20, wall_us=60),
        "compiled": Behaviour(device_us=15, wall_us=45),
        "max_autotune": Behaviour(device_us=12, wall_us=36),
    }
    return Bench(folder, **(all_of_them | behaviours))


# --- numbers ---


def test_speedups_are_baseline_over_candidate_with_intervals_around_them(tmp_path: Path) -> None:
    timing = usual(tmp_path).timing()
    for baseline, ratio in (("eager", 2.0), ("compiled", 1.5), ("max-autotune", 1.2)):
        device = against(timing, baseline).device
        assert device.low < ratio < device.high
        assert device.high - device.low < 0.1
    assert against(timing, "eager").wall.point == pytest.approx(2.0, rel=0.05)


def test_cached_baselines_are_not_run_again_and_give_the_same_ratio(tmp_path: Path) -> None:
    first = usual(tmp_path)
    first.measure()
    # Today everything runs twice as slow, the eager reference too: the ratios stay.
    second = usual(tmp_path, candidate=Behaviour(device_us=20), eager=Behaviour(device_us=40))
    timing = second.timing()
    assert sorted(second.stage.started) == ["candidate", "eager"]
    assert against(timing, "compiled").device.point == pytest.approx(1.5, rel=0.05)
    assert against(timing, "compiled").how.startswith("eager side by side, times compiled over eager side by side on ")
    assert against(timing, "eager").how == "side by side"


def test_cached_samples_say_so(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    timing = usual(tmp_path).timing()
    assert [(s.contender, s.from_cache) for s in timing.samples] == [
        ("candidate", False),
        ("eager", False),
        ("eager", True),
        ("compiled", True),
        ("max-autotune", True),
    ]
    assert {(t.contender, t.from_cache) for t in timing.times} == {
        ("candidate", False),
        ("eager", False),
        ("compiled", True),
        ("max-autotune", True),
    }


def test_quick_and_final_settings_share_one_set_of_baselines(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    again = usual(tmp_path)
    again.measure(settings=ProfileSettings(rounds=6, calls=5, limit_s=9.0))
    assert "compiled" not in again.stage.started


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": PAPER},
        {"precision": "tf32"},
    ],
)
def test_baselines_of_another_protocol_or_precision_are_a_miss(tmp_path: Path, change: dict[str, Any]) -> None:
    usual(tmp_path).measure()
    again = usual(tmp_path)
    again.measure(**change)
    assert "compiled" in again.stage.started


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema_version": 1}'])
def test_a_damaged_cache_entry_is_measured_again(tmp_path: Path, damage: bytes) -> None:
    usual(tmp_path).measure()
    (entry,) = (tmp_path / "cache" / "baselines").glob("*.json")
    entry.write_bytes(damage)
    again = usual(tmp_path)
    assert against(again.timing(), "compiled").device.point == pytest.approx(1.5, rel=0.05)
    assert "compiled" in again.stage.started
    assert msgspec.json.decode(entry.read_bytes(), type=BaselineRun).schema_version == 1


def test_a_cache_that_cannot_be_written_costs_the_cache_and_not_the_timing(tmp_path: Path) -> None:
    bench = usual(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "baselines").write_text("a file where the folder should be")
    assert against(bench.timing(), "compiled").device.point == pytest.approx(1.5, rel=0.05)
    assert any("could not be stored" in text for text in bench.said)


def test_fresh_baselines_take_turns_with_the_candidate(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path)
    timing = bench.timing(settings=msgspec.structs.replace(SETTINGS, fresh_baselines=True))
    assert {s.how for s in timing.speedups} == {"side by side"}
    assert [name for name, _ in bench.stage.turns][:8] == [
        "candidate",
        "eager",
        "compiled",
        "max-autotune",
        "max-autotune",
        "compiled",
        "eager",
        "candidate",
    ]


def test_turns_alternate_in_the_order_abba(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path)
    bench.measure()
    assert [name for name, _ in bench.stage.turns] == 2 * ["candidate", "eager", "eager", "candidate"]


def test_a_baseline_that_fails_to_compile_is_recorded_and_the_rest_is_measured(tmp_path: Path) -> None:
    broken = Behaviour(fails=fell("call", error="torch._dynamo.exc.Unsupported: no"))
    timing = usual(tmp_path, compiled=broken).timing()
    assert "torch._dynamo.exc.Unsupported: no" in timing.baseline_failures["compiled"]
    assert [speedup.baseline for speedup in timing.speedups] == ["eager", "max-autotune"]
    reward = milestones(Passed(gate="profile", check="timing", message="", timing=timing))
    assert reward.value == 2.0
    again = usual(tmp_path)
    assert "compiled" in again.timing().baseline_failures
    assert "compiled" not in again.stage.started


def test_a_baseline_that_ran_out_of_memory_is_tried_again_next_time(tmp_path: Path) -> None:
    usual(tmp_path, compiled=Behaviour(fails=fell("call", out_of_memory=True))).measure()
    again = usual(tmp_path)
    assert not again.timing().baseline_failures
    assert "compiled" in again.stage.started


def test_the_milestone_needs_the_interval_and_not_the_point(tmp_path: Path) -> None:
    steady = usual(tmp_path / "a", candidate=Behaviour(device_us=10, noise=0.001)).timing()
    noisy = usual(tmp_path / "b", candidate=Behaviour(samples=_uneven)).timing()
    rewards = [milestones(Passed(gate="profile", check="", message="", timing=t)).value for t in (steady, noisy)]
    assert against(noisy, "eager").device.point > 1.06
    assert rewards == [3.0, 1.0]


def _uneven(count: int) -> tuple[float, ...]:
    return tuple(26.0 if index % 3 == 1 else 10.0 for index in range(count))


# --- how calls are made ---


def test_every_call_gets_other_inputs_than_the_call_before_and_both_sides_get_the_same(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path)
    bench.measure()
    by_name = {
        name: [(*turn.device, *turn.wall) for who, turn in bench.stage.turns if who == name]
        for name in ("candidate", "eager")
    }
    assert by_name["candidate"] == by_name["eager"]
    for turn in by_name["candidate"]:
        assert all(a.slot != b.slot for a, b in itertools.pairwise(turn))
    seeds = [given.seed for turn in by_name["candidate"] for given in turn]
    assert len(set(seeds)) == len(seeds)


def test_inputs_that_are_slow_to_draw_are_drawn_once(tmp_path: Path) -> None:
    slow = Behaviour(input_seconds=2.0)
    usual(tmp_path, eager=slow).measure()
    bench = usual(tmp_path, eager=slow)
    bench.measure()
    seeds = {given.seed for _, turn in bench.stage.turns for given in (*turn.device, *turn.wall)}
    assert len(seeds) == 4  # the four sets that the reference's process had room for


def test_nothing_that_the_candidate_is_told_repeats_between_judgements(tmp_path: Path) -> None:
    requests = []
    for seed in (1, 2):
        bench = usual(tmp_path)
        bench.measure(seed=seed)
        requests += [request.seed for request in bench.stage.requests if request.contender == "candidate"]
    assert len(set(requests)) == 2


def test_slow_calls_are_made_less_often(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path, candidate=Behaviour(device_us=1.2e6, wall_us=1.5e6, input_seconds=0.0))
    bench.stage.behaviours["eager"] = Behaviour(device_us=1.0e6, wall_us=1.5e6, input_seconds=0.0)
    timing = bench.timing()
    assert {s.contender: s.per_round for s in timing.samples if not s.from_cache} == {"candidate": 2, "eager": 2}


def test_a_hopelessly_slow_candidate_gets_three_rounds(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path, candidate=Behaviour(device_us=300))
    assert against(bench.timing(), "eager").device.high < 0.1
    assert len(bench.stage.turns) == 2 * 3


def test_rounds_end_at_the_time_limit_but_not_before_three(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path)
    bench.timing(settings=ProfileSettings(rounds=500, calls=3, limit_s=0.0))
    assert len(bench.stage.turns) == 2 * 3


@pytest.mark.parametrize(
    ("protocol", "precision", "tf32"),
    [(STRICT, "fp32", "off"), (STRICT, "tf32", "on"), (STRICT, "bf16", "off"), (PAPER, "fp32", "as torch ships")],
)
def test_precision_switches_follow_protocol_and_problem_for_every_contender(
    tmp_path: Path, protocol: VerifyProtocol, precision: str, tf32: str
) -> None:
    bench = usual(tmp_path)
    bench.measure(protocol=protocol, precision=precision)
    assert [request.tf32 for request in bench.stage.requests] == [tf32] * 4


def test_compiled_kernels_are_kept_outside_the_job_folder(tmp_path: Path) -> None:
    bench = usual(tmp_path)
    bench.measure()
    folders = {job.folder.rpartition("/")[2]: job.environment for job in bench.sandbox.jobs}
    assert folders["compiled"]["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
    assert folders["candidate"] == {}


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    bench = usual(tmp_path)
    bench.measure()
    assert list(bench.scratch.iterdir()) == []


def test_a_measurement_waits_for_the_one_that_has_the_device(tmp_path: Path) -> None:
    bench = usual(tmp_path)
    bench.measure()
    done: list[Timing | Verdict] = []
    with (tmp_path / "cache" / "locks" / "cuda-7.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = usual(tmp_path)
        thread = threading.Thread(target=lambda: done.append(second.measure()))
        thread.start()
        thread.join(0.3)
        assert (done, second.stage.started) == ([], [])
        assert second.said == ["waiting for cuda:7, on which another candidate is being timed"]
    thread.join(20)
    assert isinstance(done[0], Timing)


# --- verdicts instead of numbers ---


def rejected(folder: Path, **behaviours: Behaviour) -> Timing | Verdict:
    """Measure with everything known but what is said."""
    usual(folder).measure()
    return usual(folder, **behaviours).measure()


def test_a_candidate_that_raises_in_a_timed_call_crashed(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(fails_round=fell("call", error="RuntimeError: third call")))
    assert isinstance(verdict, Crashed)
    assert verdict.message == "The candidate failed while it was timed (call): RuntimeError: third call"
    assert milestones(verdict).value == -1.0


def test_a_candidate_whose_process_dies_crashed(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(dies=True))
    assert isinstance(verdict, Crashed)
    assert verdict.message == "The process that times the candidate ended with exit status 9."


def test_a_candidate_that_hangs_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual(tmp_path).measure()
    monkeypatch.setattr(contenders, "ROUND_LIMIT_S", 0.2)
    verdict = usual(tmp_path, candidate=Behaviour(hangs=True)).measure()
    assert isinstance(verdict, TimedOut)
    assert verdict.limit_s == pytest.approx(0.2, abs=0.1)


def test_a_slow_claim_does_not_buy_an_endless_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual(tmp_path).measure()
    monkeypatch.setattr(contenders, "LONGEST_ROUND_S", 0.3)
    verdict = usual(tmp_path, candidate=Behaviour(wall_us=1e12, hangs=True)).measure()
    assert isinstance(verdict, TimedOut)
    assert verdict.limit_s == 0.3


def test_a_reference_that_fails_is_the_problems_fault(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, eager=Behaviour(fails=fell("call", error="IndexError: out of range")))
    assert isinstance(verdict, ProblemFault)
    assert "IndexError: out of range" in verdict.message
    assert milestones(verdict).value is None


@pytest.mark.parametrize("name", ["eager", "candidate"])
def test_inputs_that_do_not_fit_into_memory_are_the_machines_fault(tmp_path: Path, name: str) -> None:
    verdict = rejected(tmp_path, **{name: Behaviour(fails=fell("inputs", out_of_memory=True))})
    assert isinstance(verdict, MachineFault)


def test_a_candidate_that_needs_too_much_memory_crashed(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(fails=fell("call", out_of_memory=True)))
    assert isinstance(verdict, Crashed)


@pytest.mark.parametrize(
    ("behaviour", "check"),
    [
        (Behaviour(leftover_us=400.0), "work after the call"),
        (Behaviour(leftover_us=30.0), "work after the call"),
        (Behaviour(hidden_s=0.02), "reported times"),
        (Behaviour(changed=("torch.cuda.Event.elapsed_time",)), "clocks"),
        (Behaviour(samples=lambda count: (0.0,) * count), "samples"),
        (Behaviour(samples=lambda count: (10.0,) * (count - 1)), "samples"),
    ],
)
def test_times_that_cannot_be_true_are_cheating(tmp_path: Path, behaviour: Behaviour, check: str) -> None:
    verdict = rejected(tmp_path, candidate=behaviour)
    assert isinstance(verdict, Cheated)
    assert verdict.check == check


def test_overhead_that_the_reference_has_too_is_no_cheating(tmp_path: Path) -> None:
    slow = Behaviour(hidden_s=0.02, leftover_us=40.0)
    assert isinstance(rejected(tmp_path, candidate=slow, eager=slow), Timing)


def test_a_call_that_leaves_tf32_on_breaks_the_contract(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(changed=("torch.backends.cuda.matmul.allow_tf32",)))
    assert isinstance(verdict, BrokeContract)
    assert "torch.backends.cuda.matmul.allow_tf32" in verdict.message


def test_a_timed_call_with_a_wrong_result_is_found(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(bad_share=0.5, shape=(10, 100)))
    assert isinstance(verdict, WrongOutput)
    assert (verdict.first_bad_index, verdict.expected, verdict.got) == ((2, 5), "1.0", "7.0")
    assert (verdict.bad_count, verdict.total_count) == (50, 100)


def test_only_the_first_turn_keeps_a_result_and_the_reference_checks_that_call(tmp_path: Path) -> None:
    usual(tmp_path).measure()
    bench = usual(tmp_path)
    bench.measure()
    keeping = [(turn, turn.keep) for who, turn in bench.stage.turns if turn.keep is not None]
    ((turn, keep),) = keeping
    assert keep is not None
    assert [check.input for check in bench.stage.checks] == [turn.device[keep]]
    assert bench.stage.checks[0].keep_seed == turn.keep_seed


def _link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("keeps", [_link, _folder])
def test_something_else_in_place_of_the_kept_result_is_cheating(tmp_path: Path, keeps: Callable[[Path], None]) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(keeps=keeps))
    assert isinstance(verdict, Cheated)
    assert "no regular file" in verdict.message


def test_a_kept_result_that_is_missing_is_the_candidates_fault(tmp_path: Path) -> None:
    verdict = rejected(tmp_path, candidate=Behaviour(keeps=lambda path: None))
    assert isinstance(verdict, BrokeContract)


def test_a_time_below_the_memory_floor_is_refused(tmp_path: Path) -> None:
    # 1 GB of outputs beyond twice the 50 MB of L2, at 2 x 3.5 TB/s: 128 us at least.
    shape = (250_000_000,)
    verdict = rejected(
        tmp_path, candidate=Behaviour(device_us=100, shape=shape), eager=Behaviour(device_us=300, wall_us=300)
    )
    assert isinstance(verdict, BrokeContract)
    assert verdict.check == "memory floor"
    honest = Behaviour(device_us=280, wall_us=300, shape=shape)
    assert isinstance(rejected(tmp_path, candidate=honest, eager=Behaviour(device_us=300, wall_us=300)), Timing)


def test_a_floor_that_the_reference_beats_does_not_apply(tmp_path: Path) -> None:
    view = Behaviour(device_us=2, wall_us=8, shape=(250_000_000,))
    assert isinstance(rejected(tmp_path, candidate=view, eager=view), Timing)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_lock_that_cannot_be_made_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    from cuda_agent.errors import MachineError

    with pytest.raises(MachineError, match="CUDA_AGENT_CACHE"):
        usual(tmp_path).measure()


def test_asking_for_baselines_alone_measures_them_once(tmp_path: Path) -> None:
    def ask() -> tuple[BaselineRun, list[str]]:
        bench = usual(tmp_path)
        run = bench.gate.baselines(
            PROBLEM, description(), device=DEVICE, protocol=STRICT, on_progress=bench.said.append
        )
        assert isinstance(run, BaselineRun)
        return run, bench.stage.started

    first, second = ask(), ask()
    assert first[0] == second[0]
    assert [sorted(started) for _, started in (first, second)] == [["compiled", "eager", "max-autotune"], []]


def test_the_reference_decides_how_many_input_sets_all_have(tmp_path: Path) -> None:
    bench = usual(tmp_path)
    seen: list[Prepare] = []
    original = contenders.ContenderProcess.ask

    def ask(self: Any, command: Any, kind: Any, limit_s: float) -> Any:
        if isinstance(command, Prepare):
            seen.append(command)
        return original(self, command, kind, limit_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contenders.ContenderProcess, "ask", ask)
        bench.measure()
    assert [(len(command.seeds), command.exact) for command in seen] == [(6, False), (4, True), (4, True), (4, True)]
