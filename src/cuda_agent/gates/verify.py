"""The verify gate: reference, candidate and comparison in three processes, and the verdict here.

The candidate's process gets inputs and weights, trial after trial, and delivers bytes; the compare process takes
them before anything is expected; only then does the reference's process compute what they should be. This process
loads none of the three: it asks, and decides from facts.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cuda_agent.gates import protocols
from cuda_agent.gates.protocols import Trial, VerifyProtocol
from cuda_agent.records import codec
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.channel import Channel, ChannelClosed
from cuda_agent.records.jobs import GIB, Died, Expired, Limits, WorkerJob, describe
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.protection import Protections
from cuda_agent.records.verdict import (
    BrokeContract,
    Cheated,
    Crashed,
    MachineFault,
    OutputError,
    ProblemFault,
    TimedOut,
    Verdict,
    WrongOutput,
)
from cuda_agent.records.verification import (
    Bound,
    Call,
    Called,
    CandidateLoaded,
    CandidateReply,
    CandidateRequest,
    Compare,
    Compared,
    CompareFailed,
    CompareReply,
    CompareRequest,
    Confined,
    Construct,
    Done,
    Expect,
    Expected,
    Facts,
    InputsMade,
    LoadWeights,
    MakeInputs,
    MakeWeights,
    MappingNode,
    OutputStats,
    PlainLeaf,
    Raised,
    ReferenceFailed,
    ReferenceReady,
    ReferenceReply,
    ReferenceRequest,
    SequenceNode,
    Take,
    Taken,
    TensorFile,
    TensorLeaf,
    Tree,
    WeightsMade,
)
from cuda_agent.sandbox.contract import RunningJob, Sandbox

LOAD_LIMIT_S = 60.0
"""Longest wait for a candidate to import and construct; torch was imported before."""
CALL_LIMIT_S = {"emulated": 120.0, "cuda": 60.0}
"""Longest wait for one call. On the emulated device one launch may take 60 s, half of it."""
SLOWEST = 100.0
"""A call may take this many times the reference's."""
LAUNCH_LIMIT_S = 60.0
"""The emulated device's own limit for one launch."""
REFERENCE_LIMIT_S = 300.0
WITHOUT_CUDA = ("not compiled with CUDA", "NVIDIA driver", "No CUDA GPUs", "CUDA driver", "is_cuda")
"""What errors of candidates say that insist on CUDA tensors."""
IDLE_LIMIT_S = 10.0
"""Longest wait for a call in which kernels do nothing; a host loop that waits for a kernel's word never ends."""
TORCH_ELEMENTS = 256
TORCH_SHARE = 0.01
"""torch's own operators may compute on this many elements in a call, absolute and by those of inputs and outputs."""
SMALLEST_SHARE = 1e-3
"""The absolute bound counts at least this share of the size that outputs have on inputs as given, so that a result of
1e-12 where zero is expected is not an error."""

UNSUPPORTED = "emulated device"
"""Check of a machine fault that another candidate need not meet: an instruction the emulated device lacks."""

R = TypeVar("R")


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate is correct, as far as these trials can tell."""

    errors: tuple[OutputError, ...]
    trials: int
    seconds: float
    notes: tuple[str, ...] = ()
    """Checks that could not run, and comparisons without a float64 oracle, one sentence each."""


class _Stop(Exception):
    """Ends the conversation with a verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class VerifyGate:
    """Runs a candidate against its reference.

    Stops: results from memory of the reference or of earlier calls, comparisons and clocks patched in the candidate's
    process, wrong shapes, dtypes, devices and structures, unwritten outputs, changed inputs, races that some order of
    warps exposes on the emulated device, errors on other shapes, values and weights.
    Does not stop: a candidate that reads other processes' files as the same user; that is the sandbox's part.
    """

    def __init__(self, *, sandbox: Sandbox, scratch: Path) -> None:
        """Take where workers run and a folder for their files, fast and large enough for inputs and outputs."""
        self._sandbox = sandbox
        self._scratch = scratch

    def check(
        self,
        problem: Problem,
        description: ProblemDescription,
        candidate: Candidate,
        build: Build,
        *,
        device: str,
        protocol: VerifyProtocol,
        seed: int,
        on_progress: Callable[[str], None],
        on_confined: Callable[[Protections], None],
    ) -> Verified | Verdict:
        """Return `Verified`, or the verdict that ends the judgement.

        Args:
            device: `emulated` or `cuda:N`.
            seed: root seed; every trial's seeds are derived from it and never reach the candidate.
            on_confined: told what rights the candidate's process gave up, before the candidate is loaded.

        Raises:
            MachineError: workers can't be started.
        """
        self._scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._scratch, prefix="verify-"))
        conversation = _Conversation(
            self._sandbox,
            folder,
            problem,
            description,
            candidate,
            build,
            device,
            protocol,
            seed,
            on_progress,
            on_confined,
        )
        try:
            return conversation.run()
        except _Stop as stop:
            return stop.verdict
        finally:
            conversation.close()
            shutil.rmtree(folder, ignore_errors=True)


class _Party:
    """One worker and the channel to it."""

    def __init__(self, sandbox: Sandbox, folder: Path, worker: str, request: Any, limits: Limits) -> None:
        folder.mkdir()
        codec.write(folder / "request.json", request)
        self.job: RunningJob = sandbox.start(WorkerJob(worker=worker, folder=str(folder), limits=limits))
        self.link = Channel(self.job.channel)
        self._over = False

    def kill(self) -> None:
        """End it, whatever it does."""
        if not self._over:
            self._over = True
            self.job.kill()

    def ending(self) -> str:
        """Wait for its end and say how it came, with the last words."""
        self._over = True
        outcome = self.job.wait(10)
        tail = (
            f": {outcome.stderr_tail.strip()[-600:]}"
            if isinstance(outcome, Died) and outcome.stderr_tail.strip()
            else ""
        )
        return f"{describe(outcome)}{tail}" if not isinstance(outcome, Expired) else "stopped answering"


class _Conversation:
    """One verify run: three workers, trial after trial."""

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        problem: Problem,
        description: ProblemDescription,
        candidate: Candidate,
        build: Build,
        device: str,
        protocol: VerifyProtocol,
        seed: int,
        on_progress: Callable[[str], None],
        on_confined: Callable[[Protections], None],
    ) -> None:
        self._folder = folder
        self._description = description
        self._device = device
        self._protocol = protocol
        self._seed = seed
        self._on_progress = on_progress
        self._on_confined = on_confined
        self._parties: list[_Party] = []
        self._plain_stats: dict[str, tuple[OutputStats, ...]] = {}
        self._notes: list[str] = []
        self._launches: int | None = None
        self._last_called = -1
        self._loaded = -1
        self._reference_s = 0.0
        self._seconds = 0.0
        self._where = ""
        emulated = device == "emulated"
        torch_device = "cpu" if emulated else device
        self._outputs = folder / "outputs"
        for name in ("handover", "private", "outputs"):
            (folder / name).mkdir()
        matmul, cudnn = _tf32(protocol, description)
        memory = Limits(memory_bytes=(8 if emulated else 64) * GIB, file_bytes=64 * GIB)
        self._reference = self._start(
            sandbox,
            "reference",
            ReferenceRequest(
                source=description.cpu_source or problem.source if emulated else problem.source,
                shapes="cpu" if emulated else "gpu",
                device=torch_device,
                handover=str(folder / "handover"),
                private=str(folder / "private"),
                oracle=protocol.oracle,
                matmul_tf32=matmul,
                cudnn_tf32=cudnn,
            ),
            memory,
        )
        self._built = bool(build.library)
        self._candidate = self._start(
            sandbox,
            "candidate",
            CandidateRequest(
                candidate=candidate,
                library=build.library,
                emulated=build.target == "emulated",
                device=torch_device,
                threads=0,
                handover=str(folder / "handover"),
                outputs=str(self._outputs),
                matmul_tf32=matmul,
                cudnn_tf32=cudnn,
            ),
            memory,
        )
        self._compare = self._start(sandbox, "compare", CompareRequest(device=torch_device), memory)

    def _start(self, sandbox: Sandbox, worker: str, request: Any, limits: Limits) -> _Party:
        party = _Party(sandbox, self._folder / worker, worker, request, limits)
        self._parties.append(party)
        return party

    def close(self) -> None:
        """End all workers, side by side: leaving a CUDA context takes a while."""
        with ThreadPoolExecutor(len(self._parties)) as pool:
            for _ in pool.map(_Party.kill, self._parties):
                pass

    def run(self) -> Verified:
        """Go through all trials; raises `_Stop` with a verdict at the first failure."""
        trials = protocols.plan(self._protocol, self._description, device=self._device, seed=self._seed)
        ready = self._ask_reference(None, ReferenceReady)
        weights = {0: self._make_weights(0)}
        self._learn_protections()
        if not self._ask_candidate(None, CandidateLoaded, LOAD_LIMIT_S).poison_works:
            self._note(
                "Unwritten memory can't be filled with garbage by this C library, so unwritten outputs may pass."
            )
        self._ask_candidate(Construct(init_inputs=ready.init_inputs, training=ready.training), Done, LOAD_LIMIT_S)
        errors: list[OutputError] = []
        done = 0
        for trial in trials:
            if trial.weights not in weights:
                weights[trial.weights] = self._make_weights(trial.weights)
            made = weights[trial.weights]
            if self._loaded != trial.weights:
                self._where = "loading weights"
                self._ask_candidate(LoadWeights(names=made.names, tensors=made.tensors), Done, LOAD_LIMIT_S)
            self._loaded = trial.weights
            found = self._trial(trial, done + 1, len(trials))
            if found is not None:
                errors += found
                done += 1
        if self._launches == 0:
            message = (
                f"None of {done} calls launched a kernel, so the results are torch's own. Call a launcher from "
                "cuda_extension in forward()."
            )
            raise _Stop(BrokeContract(gate="verify", check="own kernels", message=message))
        if self._launches is not None:
            self._check_kernels_matter(trials[0], len(trials))
        return Verified(errors=tuple(errors), trials=done, seconds=self._seconds, notes=tuple(self._notes))

    def _learn_protections(self) -> None:
        confined = self._ask_candidate(None, Confined, LOAD_LIMIT_S)
        if confined.protections is None:
            message = (
                f"The candidate's process could not be confined, so the candidate was not loaded: {confined.failure}"
            )
            raise _Stop(MachineFault(gate="verify", check="confinement", message=message))
        self._on_confined(confined.protections)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self._on_progress(text)

    def _make_weights(self, number: int) -> WeightsMade:
        seed = protocols.weights_seed(self._protocol, self._seed, number)
        return self._ask_reference(MakeWeights(number=number, seed=seed), WeightsMade)

    def _trial(self, trial: Trial, number: int, total: int) -> list[OutputError] | None:
        """Run one trial and return its errors; None when the reference is not sound on its changed inputs."""
        what = trial.case if trial.distribution == "as given" else f"{trial.case}, {trial.distribution}"
        self._where = what
        self._on_progress(f"trial {number} of at most {total} ({what})")
        made = self._make_inputs(trial)
        try:
            if not self._is_sound(trial, made):
                return None
            called = self._ask_candidate(self._call(trial, made), Called, self._call_limit(), trial)
            self._last_called = trial.number
            self._seconds += called.seconds
            self._launches = called.launches
            taken = None
            if self._is_readable(called):
                taken = self._ask_compare(Take(trial=trial.number, tensors=called.outputs.tensors), Taken)
            expected = self._ask_reference(Expect(trial=trial.number, check_random=trial.number == 0), Expected)
            if expected.random:
                raise _Stop(
                    ProblemFault(
                        gate="verify",
                        check="randomness",
                        message="The reference gives different results for the same inputs, so there is nothing to verify "
                        "against. Remove the randomness from Model.forward.",
                    )
                )
            if self._protocol.oracle and expected.oracle != "float64":
                self._note(f"Results are compared with the reference itself: {expected.no_oracle_why}.")
            self._reference_s = max(self._reference_s, expected.seconds)
            self._check_structure(trial, made, called, expected)
            if taken is None or taken.unreadable:
                why = taken.unreadable if taken else "the result lies outside the folder for results"
                raise _Stop(self._contract(trial, "output bytes", f"The result can't be read: {why}."))
            errors = self._check_values(trial, made, called, expected, taken)
            self._check_torch_work(trial, made, called)
            self._check_patched(called)
            return errors
        finally:
            self._forget()

    def _make_inputs(self, trial: Trial) -> InputsMade:
        return self._ask_reference(
            MakeInputs(
                trial=trial.number,
                case=trial.case,
                seed=trial.seed,
                distribution=trial.distribution,
                weights=trial.weights,
            ),
            InputsMade,
        )

    def _call(self, trial: Trial, made: InputsMade, *, idle: bool = False) -> Call:
        return Call(
            trial=trial.number,
            inputs=made.inputs,
            reuse_buffers=trial.reuse_buffers,
            reload=self._description.training,
            poison=trial.poison,
            poison_bytes=made.output_bytes,
            schedule=trial.schedule,
            idle=idle,
        )

    def _is_readable(self, called: Called) -> bool:
        ours = all(self._is_ours(file) for file in called.outputs.tensors)
        return ours and all(kind == "Tensor" for kind in called.types)

    def _check_patched(self, called: Called) -> None:
        if called.patched:
            names = ", ".join(called.patched[:3])
            message = (
                f"The candidate replaced {names} in its process. Results are compared elsewhere, so that gains nothing; "
                "leave what is not the candidate's own as it is."
            )
            raise _Stop(Cheated(gate="verify", check="patched functions", message=message))

    def _check_torch_work(self, trial: Trial, made: InputsMade, called: Called) -> None:
        """Refuse results that torch's own operators computed; what they touch besides must be little."""
        if not self._built:
            return
        moved = sum(math.prod(file.shape) for file in (*made.inputs.tensors, *called.outputs.tensors))
        computed = sum(operator.elements for operator in called.torch_work)
        if computed <= max(TORCH_ELEMENTS, TORCH_SHARE * moved):
            return
        names = ", ".join(f"{operator.name} ({operator.elements} elements)" for operator in called.torch_work[:3])
        raise _Stop(
            self._contract(
                trial,
                "torch compute",
                f"torch computed in forward(): {names}; inputs and outputs have {moved} elements. Compute in a kernel; "
                "torch may make, view and copy tensors. What depends on parameters alone can be done when they are loaded.",
            )
        )

    def _check_kernels_matter(self, like: Trial, number: int) -> None:
        """Refuse a candidate whose result is right though none of its kernels did anything.

        Its process may crash or hang on what idle kernels leave behind, so nothing is asked of it afterwards.
        """
        for poison in (0x00, 0xFF):  # one of them may happen to be the right result
            trial = msgspec.structs.replace(
                like, number=number, seed=like.seed ^ number, weights=self._loaded, reuse_buffers=False, poison=poison
            )
            self._on_progress("a call in which kernels do nothing")
            made = self._make_inputs(trial)
            try:
                called = self._ask_candidate(self._call(trial, made, idle=True), Called, IDLE_LIMIT_S, trial)
                self._last_called = trial.number
                if not self._is_readable(called):
                    return
                taken = self._ask_compare(Take(trial=trial.number, tensors=called.outputs.tensors), Taken)
                expected = self._ask_reference(Expect(trial=trial.number, check_random=False), Expected)
                self._check_structure(trial, made, called, expected)
                self._check_values(trial, made, called, expected, taken)
            except _Stop as stop:
                if isinstance(stop.verdict, ProblemFault | MachineFault):
                    raise
                return
            finally:
                self._forget()
            if not any(math.prod(file.shape) for file in expected.outputs.tensors):
                return
            number += 1
        raise _Stop(
            BrokeContract(
                gate="verify",
                check="own kernels",
                message="The result was right in a call in which the candidate's kernels did nothing, so it does not come "
                f"from them. Let forward() return what its kernels write. Replay with --seed {self._seed}.",
            )
        )

    def _is_ours(self, file: TensorFile) -> bool:
        return not file.file or Path(file.file).parent == self._outputs

    def _forget(self) -> None:
        """Delete files that are no longer needed; the candidate compares its last result after the next call."""
        for path in (self._folder / "handover").glob("[0-9]*-*.bin"):
            path.unlink()
        for path in (self._folder / "private").iterdir():
            path.unlink()
        for path in self._outputs.iterdir():
            if path.is_file() and not path.name.startswith(f"{self._last_called}-"):
                path.unlink()

    def _call_limit(self) -> float:
        kind = "emulated" if self._device == "emulated" else "cuda"
        return max(CALL_LIMIT_S[kind], SLOWEST * self._reference_s)

    # What a trial shows

    def _is_sound(self, trial: Trial, made: InputsMade) -> bool:
        """Whether the reference can judge on these inputs: finite, and about as accurate as on inputs as given."""
        if trial.distribution == "as given":
            return True
        if not made.applied or made.raised:
            return False
        plain = self._plain_stats.get(trial.case, ())
        ties = trial.distribution in ("zeros", "constant rows")
        for index, stats in enumerate(made.stats):
            if stats.non_finite or (ties and not stats.floating and stats.dtype != "bool"):
                return False
            usual = plain[index].max_scaled_error if index < len(plain) else None
            bound = protocols.base_rtol(self._protocol, stats.dtype, self._description.precision)
            own = self._protocol.reference_error_factor * (stats.max_scaled_error or 0.0)
            allowed = max(bound, self._protocol.reference_error_factor * (usual or 0.0))
            if stats.floating and own > protocols.CHANGED_INPUTS_FACTOR * allowed:
                return False
            amplified = self._protocol.reference_error_factor * (stats.sensitivity or 0.0)
            if amplified > max(allowed, protocols.LARGEST_BOUND):
                return False
        return True

    def _bounds(self, trial: Trial, expected: Expected) -> tuple[Bound, ...]:
        declared = self._description.tolerance if self._protocol.declared_tolerance else None
        bounds = []
        for index, stats in enumerate(expected.stats):
            if declared is not None:
                bounds.append(Bound(rtol=declared.rtol, atol=declared.atol))
                continue
            rtol = protocols.calibrated_rtol(self._protocol, stats, self._description.precision)
            base = protocols.base_rtol(self._protocol, stats.dtype, self._description.precision)
            if rtol > max(base, protocols.LARGEST_BOUND) and trial.distribution == "as given" and stats.floating:
                raise _Stop(
                    ProblemFault(
                        gate="verify",
                        check="reference accuracy",
                        message=f"The reference's own error against float64 is {stats.max_scaled_error:.2g} of its output's "
                        f"size on case '{trial.case}', so it can't judge anybody. Make the problem better conditioned, or "
                        "declare TOLERANCE.",
                    )
                )
            usual = self._plain_stats.get(trial.case, ())
            size = max(stats.rms, SMALLEST_SHARE * usual[index].rms if index < len(usual) else 0.0)
            atol = self._protocol.absolute if self._protocol.absolute is not None else rtol * size
            bounds.append(Bound(rtol=rtol, atol=atol))
        return tuple(bounds)

    def _check_structure(self, trial: Trial, made: InputsMade, called: Called, expected: Expected) -> None:
        want, got = expected.outputs, called.outputs
        difference = _tree_difference(want.tree, got.tree, "The result")
        if difference:
            raise _Stop(self._contract(trial, "output structure", f"{difference}."))
        for index, (a, b) in enumerate(zip(want.tensors, got.tensors, strict=True)):
            name = f"Output {index}" if len(want.tensors) > 1 else "The output"
            if called.types[index] != "Tensor":
                raise _Stop(
                    self._contract(
                        trial,
                        "output type",
                        f"{name} must be a plain torch.Tensor; it is a {called.types[index]}. Return a dense tensor.",
                    )
                )
            if a.shape != b.shape:
                raise _Stop(
                    self._contract(
                        trial, "output shape", f"{name} must have shape {list(a.shape)}; it has {list(b.shape)}."
                    )
                )
            if a.dtype != b.dtype:
                raise _Stop(
                    self._contract(
                        trial, "output dtype", f"{name} must be {a.dtype}, as the reference's is; it is {b.dtype}."
                    )
                )
            device = "cpu" if self._device == "emulated" else self._device
            if called.devices[index] != device:
                raise _Stop(
                    self._contract(
                        trial, "output device", f"{name} must lie on {device}; it lies on {called.devices[index]}."
                    )
                )
        changed = [i for i in called.changed_inputs if i not in expected.changed_inputs]
        if changed:
            raise _Stop(
                self._contract(
                    trial,
                    "inputs unchanged",
                    f"The call changed input {changed[0]} ({_shape(made.inputs.tensors[changed[0]])}), and the reference "
                    "leaves it alone. Write to a tensor of your own.",
                )
            )
        shared = [pair for pair in called.shared_inputs if pair not in expected.shared_inputs]
        if shared:
            raise _Stop(
                self._contract(
                    trial,
                    "fresh output",
                    f"Output {shared[0][0]} lies in the memory of input {shared[0][1]}, and the reference's does not. "
                    "Allocate the output with torch.empty.",
                )
            )
        if called.earlier_changed:
            raise _Stop(
                self._contract(
                    trial,
                    "fresh output",
                    f"This call changed output {called.earlier_changed[0]} of the call before. Allocate every result afresh "
                    "instead of reusing a buffer.",
                )
            )

    def _check_values(
        self, trial: Trial, made: InputsMade, called: Called, expected: Expected, taken: Taken
    ) -> list[OutputError]:
        bounds = self._bounds(trial, expected)
        if trial.distribution == "as given":
            self._plain_stats.setdefault(trial.case, expected.stats)
        files = tuple(
            msgspec.structs.replace(file, dtype=dtype)
            for file, dtype in zip(expected.outputs.tensors, expected.file_dtypes, strict=True)
        )
        files = tuple(
            msgspec.structs.replace(file, shape=(*file.shape, 2)) if stats.dtype.startswith("complex") else file
            for file, stats in zip(files, expected.stats, strict=True)
        )
        compared = self._ask_compare(
            Compare(trial=trial.number, expected=files, alternatives=expected.alternatives, bounds=bounds), Compared
        )
        errors = []
        for index, (facts, stats, bound) in enumerate(zip(compared.facts, expected.stats, bounds, strict=True)):
            if facts.bad:
                raise _Stop(self._wrong(trial, made, index, facts, called, bound, stats.floating, taken.same_as[index]))
            if stats.floating:
                errors.append(
                    OutputError(
                        case=trial.case,
                        seed=trial.seed,
                        output=index,
                        max_abs_error=facts.max_abs_error or 0.0,
                        relative_rms_error=facts.relative_rms_error or 0.0,
                        reference_relative_rms_error=stats.relative_rms_error,
                        rtol=bound.rtol,
                        atol=bound.atol,
                        worst_ratio=facts.worst_ratio or 0.0,
                    )
                )
        return errors

    def _wrong(
        self,
        trial: Trial,
        made: InputsMade,
        index: int,
        facts: Facts,
        called: Called,
        bound: Bound,
        floating: bool,
        same_as: int | None,
    ) -> WrongOutput:
        name = f"output {index}" if len(called.outputs.tensors) > 1 else "the output"
        file = called.outputs.tensors[index]
        error = "" if facts.max_abs_error is None else f", largest error {facts.max_abs_error:.3g}"
        allowed = f" (allowed: {bound.atol:.2g} + {bound.rtol:.2g} x |expected|)" if error else ""
        if not floating:
            allowed = " (integers and booleans must be equal)"
        values = "" if trial.distribution == "as given" else f" with inputs '{trial.distribution}'"
        text = (
            f"{name[0].upper()}{name[1:]} differs at {list(facts.first_bad)}: expected {facts.expected}, got {facts.got}; "
            f"{facts.bad} of {facts.total} values are wrong{error}{allowed}. Case '{trial.case}'{values}: {name} is "
            f"{_shape(file)}, inputs {_inputs(made)}. {_hint(facts, file.shape, same_as)}"
            f"Replay with --seed {self._seed}."
        )
        return WrongOutput(
            gate="verify",
            check="values",
            message=text,
            case=trial.case,
            seed=self._seed,
            output=index,
            first_bad_index=facts.first_bad,
            expected=facts.expected,
            got=facts.got,
            bad_count=facts.bad,
            total_count=facts.total,
            max_abs_error=facts.max_abs_error,
        )

    def _contract(self, trial: Trial, check: str, message: str) -> BrokeContract:
        return BrokeContract(
            gate="verify",
            check=check,
            message=f"{message} Case '{trial.case}'; replay with --seed {self._seed}.",
            case=trial.case,
            seed=self._seed,
        )

    # Asking

    def _ask_reference(self, command: Any, kind: type[R]) -> R:
        try:
            if command is not None:
                self._reference.link.send(command)
            reply: Any = self._reference.link.receive(ReferenceReply, timeout_s=REFERENCE_LIMIT_S)
        except TimeoutError:
            self._reference.kill()
            raise _Stop(
                ProblemFault(
                    gate="verify",
                    check="reference time",
                    message=f"The reference did not answer within {REFERENCE_LIMIT_S:.0f} s ({self._where or 'loading'}). Use "
                    "smaller shapes.",
                )
            ) from None
        except ChannelClosed:
            raise _Stop(
                ProblemFault(
                    gate="verify",
                    check="reference",
                    message=f"The process that runs the reference {self._reference.ending()} ({self._where or 'loading'}).",
                )
            ) from None
        if isinstance(reply, ReferenceFailed):
            if reply.out_of_memory:
                message = f"Not enough memory for the reference: {reply.message}"
                raise _Stop(MachineFault(gate="verify", check="memory", message=message))
            raise _Stop(ProblemFault(gate="verify", check=f"reference {reply.stage}", message=reply.message))
        return _expect(reply, kind, "reference")

    def _ask_candidate(self, command: Any, kind: type[R], limit_s: float, trial: Trial | None = None) -> R:
        case, seed = (trial.case, self._seed) if trial else ("", None)
        place = f"on case '{trial.case}'" if trial else "while it was loaded"
        try:
            if command is not None:
                self._candidate.link.send(command)
            reply: Any = self._candidate.link.receive(CandidateReply, timeout_s=limit_s)
        except TimeoutError:
            self._candidate.kill()
            message = (
                f"The candidate did not return within {limit_s:.0f} s {place}. Look for endless loops and deadlocks."
            )
            raise _Stop(TimedOut(gate="verify", check="call time", message=message, limit_s=limit_s)) from None
        except ChannelClosed:
            message = f"The candidate's process {self._candidate.ending()}, {place}, without delivering a result."
            raise _Stop(Crashed(gate="verify", check="process", message=message, case=case, seed=seed)) from None
        if isinstance(reply, Raised):
            raise _Stop(self._raised(reply, place, case, seed))
        return _expect(reply, kind, "candidate")

    def _raised(self, reply: Raised, place: str, case: str, seed: int | None) -> Verdict:
        where = f" ({reply.where})" if reply.where else ""
        message = f"The candidate raised {place}{where}: {reply.error}"
        if reply.fault and reply.fault not in message:
            message += f". The device says: {reply.fault}"
        message = message.rstrip(". ") + "."
        if self._device == "emulated" and any(text in reply.error for text in WITHOUT_CUDA):
            message += (
                " On the emulated device tensors lie on the CPU: take the device from the inputs (x.device), and don't "
                "ask for CUDA by name."
            )
        if reply.check == "unsupported":
            return MachineFault(
                gate="verify",
                check=UNSUPPORTED,
                message=f"{reply.fault}. Judge this candidate on a CUDA device (--device cuda:0).",
            )
        if reply.check in ("no ModelNew", "parameters"):
            return BrokeContract(gate="verify", check=reply.check, message=reply.error, case=case, seed=seed)
        if reply.check == "time":
            return TimedOut(gate="verify", check="launch time", message=message, limit_s=LAUNCH_LIMIT_S)
        if reply.check == "disk full":
            return MachineFault(gate="verify", check="disk full", message=message)
        if seed is not None:
            message += f" Replay with --seed {seed}."
        return Crashed(gate="verify", check=f"{reply.stage} {reply.check}", message=message, case=case, seed=seed)

    def _ask_compare(self, command: Any, kind: type[R]) -> R:
        try:
            self._compare.link.send(command)
            reply: Any = self._compare.link.receive(CompareReply, timeout_s=REFERENCE_LIMIT_S)
        except (TimeoutError, ChannelClosed):
            message = f"The process that compares {self._compare.ending()} ({self._where})."
            raise _Stop(MachineFault(gate="verify", check="compare", message=message)) from None
        if isinstance(reply, CompareFailed):
            raise _Stop(MachineFault(gate="verify", check="compare", message=reply.message))
        return _expect(reply, kind, "compare")


def _expect(reply: Any, kind: type[R], who: str) -> R:
    if not isinstance(reply, kind):
        message = f"The {who} worker answered {type(reply).__name__} where {kind.__name__} was expected."
        # A candidate's process may answer anything: that is its crash, not ours.
        verdict: Verdict = (
            Crashed(gate="verify", check="process", message=message)
            if who == "candidate"
            else MachineFault(gate="verify", check=who, message=message)
        )
        raise _Stop(verdict)
    return reply


def _tf32(protocol: VerifyProtocol, description: ProblemDescription) -> tuple[bool, bool]:
    """Return whether matrix products and cuDNN convolutions may use TF32."""
    if protocol.tf32 == "as torch ships":
        return False, True
    allowed = description.precision == "tf32"
    return allowed, allowed


def _shape(file: TensorFile) -> str:
    return f"{file.dtype}{list(file.shape)}"


def _inputs(made: InputsMade) -> str:
    def text(tree: Tree) -> str:
        if isinstance(tree, TensorLeaf):
            return _shape(made.inputs.tensors[tree.index])
        if isinstance(tree, PlainLeaf):
            return tree.text
        return _kind(tree)

    tree = made.inputs.tree
    return ", ".join(map(text, tree.items)) if isinstance(tree, SequenceNode) else text(tree)


def _hint(facts: Facts, shape: Sequence[int], same_as: int | None) -> str:
    """Say what the pattern of bad values suggests, empty when it suggests nothing."""
    parts = []
    if same_as is not None and not facts.poisoned and facts.zeros < facts.bad:
        parts.append(f"The result of trial {same_as + 1} had the very same bytes: don't keep results between calls. ")
    if facts.poisoned > 0.9 * facts.bad:
        parts.append("These values were never written: they hold the pattern that fresh memory is filled with. ")
    elif facts.poisoned:
        parts.append(f"{facts.poisoned} of them were never written. ")
    if facts.bad < facts.total and len(facts.low) == len(shape):
        for axis, (low, high, size) in enumerate(zip(facts.low, facts.high, shape, strict=True)):
            if high == size - 1 and low > 0 and (size - low) <= max(1, size // 2):
                parts.append(
                    f"All of them lie at indices {low} to {high} of dimension {axis} (size {size}): check the tail. "
                )
                break
    if not parts and facts.zeros == facts.bad and facts.bad > 1:
        parts.append("All wrong values are exactly zero. ")
    return "".join(parts)


def _tree_difference(want: Tree, got: Tree, name: str) -> str:
    """Return how the structure of a result differs from the reference's, empty when it does not."""
    if isinstance(want, TensorLeaf):
        return "" if isinstance(got, TensorLeaf) else f"{name} must be a tensor; it is {_kind(got)}"
    if isinstance(want, SequenceNode):
        if not isinstance(got, SequenceNode):
            return f"{name} must be a {want.type} of {len(want.items)}; it is {_kind(got)}"
        if len(want.items) != len(got.items):
            return f"{name} must hold {len(want.items)} values; it holds {len(got.items)}"
        pairs = zip(want.items, got.items, strict=True)
        return next((d for i, (a, b) in enumerate(pairs) if (d := _tree_difference(a, b, f"{name}[{i}]"))), "")
    if isinstance(want, MappingNode):
        if not isinstance(got, MappingNode):
            return f"{name} must be a dict; it is {_kind(got)}"
        wanted, found = dict(want.items), dict(got.items)
        if wanted.keys() != found.keys():
            return f"{name} must have the keys {', '.join(wanted)}; it has {', '.join(found) or 'none'}"
        if list(wanted) != list(found):
            return f"{name} must have its keys in the order {', '.join(wanted)}"
        return next((d for k in wanted if (d := _tree_difference(wanted[k], found[k], f"{name}[{k}]"))), "")
    if not isinstance(got, PlainLeaf):
        return f"{name} must be {want.text}; it is {_kind(got)}"
    return "" if _same_plain(want, got) else f"{name} must be {want.text}; it is {got.text}"


def _same_plain(want: PlainLeaf, got: PlainLeaf) -> bool:
    if want.text == got.text:
        return True
    try:
        a, b = float(want.text), float(got.text)
    except ValueError:
        return False
    return abs(a - b) <= 1e-4 * abs(a)


def _kind(tree: Tree) -> str:
    if isinstance(tree, TensorLeaf):
        return "a tensor"
    if isinstance(tree, SequenceNode):
        return f"a {tree.type} of {len(tree.items)}"
    if isinstance(tree, MappingNode):
        return "a dict"
    return tree.text if tree.type != "NoneType" else "None"
