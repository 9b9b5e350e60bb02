"""The policy that needs no model: it lowers the traced reference to kernels, and tunes them by what it is told.

It works through the same tools as any other policy. What it can't do it says by name, and then it stops: a part of a
problem done in torch would be no kernel.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from cuda_agent.errors import UserError
from cuda_agent.policies.contract import Stop
from cuda_agent.policies.lowering import Kernel, Lowering, Plan, Uncovered
from cuda_agent.policies.module_text import module_text
from cuda_agent.policies.operations import OPERATIONS
from cuda_agent.records.episode import Briefing, ToolCall, ToolResult, Turn
from cuda_agent.skills.kernel_text import Generated, Tuning
from cuda_agent.skills.program import Unplaceable
from cuda_agent.skills.registry import SKILLS

COVERS = (
    "pointwise operations, reductions over the last dimensions or everything, softmax, log-softmax, and layer, RMS, "
    "group, instance and (with running statistics) batch norm, in chains of any length"
)
REPAIRS = (Tuning(scalar=True), Tuning(scalar=True, resident=False))
"""Simpler forms of a kernel, tried in turn when one does not compile or is not correct."""
LEAST_GAIN = 1.01
"""A tuning must be this much faster in a quick measurement to be kept; the final one decides what is claimed."""
TIME_KEPT_FREE = 0.4
"""Share of the time budget that tuning leaves for the final judgement."""

_Calls = Generator[ToolCall, ToolResult, Stop]


class Composer:
    """Composes kernels from skills."""

    def begin(self, briefing: Briefing, past: Sequence[Turn]) -> _Work:
        """Start, or take an episode up again by going through its turns once more.

        Raises:
            UserError: the stored turns are not what this version would have done.
        """
        work = _Work(briefing)
        for number, turn in enumerate(past):
            call = work.next(past[number - 1].result if number else None)
            if not isinstance(call, ToolCall) or (call.tool, call.arguments) != (turn.call.tool, turn.call.arguments):
                raise UserError(
                    f"Turn {turn.number} of the stored run ({turn.call.tool}) is not what this version of the composer "
                    "would do; it was made by another version or for another problem. Start a new run."
                )
        return work


class _Work:
    """One episode."""

    def __init__(self, briefing: Briefing) -> None:
        self._briefing = briefing
        self._calls = self._compose()
        self._tunings: dict[str, Tuning] = {}
        self._written: dict[str, str] = {}
        self._turns = 0
        self._seconds = 0.0

    def next(self, result: ToolResult | None) -> ToolCall | Stop:
        """Return the next call; see `Conversation`."""
        try:
            if result is None:
                call = next(self._calls)
            else:
                self._seconds += result.seconds
                call = self._calls.send(result)
        except StopIteration as end:
            stop: Stop = end.value
            return stop
        self._turns += 1
        return call

    def _compose(self) -> _Calls:
        briefing = self._briefing
        if briefing.graph is None:
            return Stop(f"The composer works from a traced graph, and there is none: {briefing.untraced}", gave_up=True)
        try:
            plan = Lowering(briefing.graph).plan(OPERATIONS)
            self._tunings = {kernel.program.name: Tuning() for kernel in plan.kernels}
            self._text(plan)
        except (Uncovered, Unplaceable) as error:
            return Stop(f"The composer has no kernel for: {error}. It covers {COVERS}.", gave_up=True)
        names = ", ".join(kernel.program.name for kernel in plan.kernels)
        count = len(plan.kernels)
        yield from self._write(plan, f"{count} kernel{'s' if count > 1 else ''} for the whole module: {names}")
        problem = yield from self._until_correct(plan)
        if problem is not None:
            return problem
        if briefing.device != "emulated":
            yield from self._tune(plan)
        result = yield ToolCall(tool="submit", thought=self._closing_thought())
        if not result.ok:
            return Stop(f"The final judgement rejected the candidate: {result.text}", gave_up=True)
        return Stop(f"Submitted {count} kernel{'s' if count > 1 else ''}: {names}.")

    def _closing_thought(self) -> str:
        if self._briefing.device == "emulated":
            return (
                "correct; there is no time to tune by on this device, so launch parameters stay as the skills set them"
            )
        return "the fastest form found"

    # --- correctness ---

    def _until_correct(self, plan: Plan) -> Generator[ToolCall, ToolResult, Stop | None]:
        """Compile and verify, falling back to simpler forms of what fails; return why it can't be done, if so."""
        for attempt in range(len(REPAIRS) + 1):
            result = yield ToolCall(tool="compile", thought="does it build?")
            if result.ok:
                result = yield ToolCall(tool="verify", thought="is it correct?")
            if result.ok:
                return None
            if attempt == len(REPAIRS):
                break
            failing = self._named(plan, result) or [kernel.program.name for kernel in plan.kernels]
            for name in failing:
                self._tunings[name] = REPAIRS[attempt]
            yield from self._write(plan, f"simpler form of {', '.join(failing)}: plain accesses, no vectors")
        return Stop(
            f"The composed kernels are not right, and their simpler forms are not either: {result.text}", gave_up=True
        )

    @staticmethod
    def _named(plan: Plan, result: ToolResult) -> list[str]:
        """Return the kernels whose files a failed build names."""
        files = {diagnostic.get("file", "") for diagnostic in result.data.get("diagnostics", ())}
        return [k.program.name for k in plan.kernels if f"kernels/{k.program.name}.cu" in files]

    # --- speed ---

    def _tune(self, plan: Plan) -> Generator[ToolCall, ToolResult, None]:
        """Try each kernel's tunings one at a time and keep what is faster beside eager."""
        result = yield ToolCall(tool="profile", thought="how fast is it as the skills set it?")
        best = _speed(result)
        if best is None:
            return
        for kernel in plan.kernels:
            for change in SKILLS[kernel.skill].tunings:
                if not self._may_go_on():
                    return
                name = kernel.program.name
                kept = self._tunings[name]
                self._tunings[name] = replace(kept, **change)  # type: ignore[arg-type]
                what = ", ".join(f"{key} {value}" for key, value in change.items())
                before = dict(self._written)
                yield from self._write(plan, f"{name} with {what}")
                if self._written == before:
                    self._tunings[name] = kept
                    continue
                speed = _speed((yield ToolCall(tool="profile", thought=f"is {name} faster with {what}?")))
                if speed is not None and speed > best * LEAST_GAIN:
                    best = speed
                    continue
                self._tunings[name] = kept
                yield from self._write(plan, f"back to {name} as it was")

    def _may_go_on(self) -> bool:
        # A change is a write, a profile and a write back; the submission is one more.
        turns_left = self._briefing.turn_limit - self._turns
        return turns_left > 4 and self._seconds < (1 - TIME_KEPT_FREE) * self._briefing.time_limit_s

    # --- files ---

    def _write(self, plan: Plan, thought: str) -> Generator[ToolCall, ToolResult, None]:
        """Write the files that differ from those in the workspace."""
        for path, text in self._text(plan).items():
            if self._written.get(path) != text:
                self._written[path] = text
                yield ToolCall(tool="write", arguments={"path": path, "text": text}, thought=thought)

    def _text(self, plan: Plan) -> dict[str, str]:
        generated = [self._generated(kernel) for kernel in plan.kernels]
        files = {f"kernels/{kernel.program.name}.cu": made.source for kernel, made in zip(plan.kernels, generated)}
        problem = self._briefing.problem
        files["model_new.py"] = module_text(problem.source, plan, generated, name=problem.name)
        return files

    def _generated(self, kernel: Kernel) -> Generated:
        return SKILLS[kernel.skill].generate(kernel.program, self._tunings[kernel.program.name])


def _speed(result: ToolResult) -> float | None:
    """Return how much faster than eager the candidate was, side by side; None when it was not measured."""
    if not result.ok:
        return None
    speed = result.data.get("speedups", {}).get("eager")
    return float(speed) if speed is not None else None
