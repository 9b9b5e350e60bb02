"""What a command prints: live progress and tables on standard error, results on standard output."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuda_agent.records.evidence import Evidence
from cuda_agent.records.timing import Interval, Timing
from cuda_agent.records.verdict import Gate, GateReport, Passed, Rejection, Verdict

STATUS_STYLE = {
    "passed": "green",
    "rejected": "bold red",
    "not measured": "yellow",
    "not run": "dim",
    "fault": "bold magenta",
}


class Output:
    """Progress for a person on standard error, or silence; the result on standard output."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        # No markup: messages hold indices such as `[0, 3]` and requirements such as `cuda-agent[toolkit]`.
        self._errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        # Where no terminal says how wide it is, lines may be as long as code's.
        width = None if self._errors.is_terminal else 120
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=json, width=width)
        self._status = self._errors.status("") if self._errors.is_terminal else None
        self._started = time.monotonic()

    def progress(self, gate: Gate, text: str) -> None:
        """Show what a gate is doing; only on a terminal, where it is overwritten by the next."""
        if self._status is not None:
            self._status.update(Text(f"{gate}: {text}"))
            self._status.start()

    def report(self, report: GateReport) -> None:
        """Show that a gate is done."""
        self.pause()
        if report.status == "not run":
            return
        line = Text(f"  {report.gate:<8}")
        line.append(f"{report.status:<13}", STATUS_STYLE[report.status])
        line.append(f"{report.seconds:6.1f} s  {report.message}")
        self._errors.print(line)

    def say(self, text: str, style: str = "") -> None:
        """Print one line of progress."""
        self.pause()
        self._errors.print(Text(text, style))

    def pause(self) -> None:
        """Take the live line off the screen."""
        if self._status is not None:
            self._status.stop()

    def elapsed_s(self) -> float:
        """Seconds since this output was made."""
        return time.monotonic() - self._started

    def print(self, renderable: Any) -> None:
        """Print part of the result for a person."""
        self.pause()
        self._console.print(renderable)

    def print_json(self, data: dict[str, Any]) -> None:
        """Print the one JSON object of a `--json` call."""
        self.pause()
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
        sys.stdout.flush()


def verdict_table(evidence: Evidence, *, cost: str) -> Table:
    """Return the one table that ends a judgement."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    verdict = evidence.verdict
    style = "green" if isinstance(verdict, Passed) else "bold red"
    table.add_row("problem", evidence.problem.name)
    table.add_row("device", f"{evidence.device.name} ({evidence.device.model}), protocol {evidence.protocol}")
    table.add_row("verdict", Text(str(verdict.__struct_config__.tag), style))
    for report in evidence.gates:
        text = Text(report.status, STATUS_STYLE[report.status])
        text.append(f"  {report.seconds:.1f} s  {report.message}", "default")
        table.add_row(f"  {report.gate}", text)
    table.add_row("error", _error_line(evidence))
    timing = verdict.timing if isinstance(verdict, Passed) else None
    for name, value in _time_rows(timing):
        table.add_row(name, value)
    reward = evidence.reward
    table.add_row("reward", f"{'none' if reward.value is None else f'{reward.value:g}'}  ({reward.why})")
    table.add_row("cost", cost)
    if not isinstance(verdict, Passed):
        table.add_row("why", verdict.message)
    return table


def _error_line(evidence: Evidence) -> str:
    if not evidence.errors:
        return "not measured"
    worst = max(evidence.errors, key=lambda error: error.worst_ratio)
    return (
        f"max {max(e.max_abs_error for e in evidence.errors):.2e} absolute; "
        f"relative RMS {max(e.relative_rms_error for e in evidence.errors):.2e}; "
        f"at most {worst.worst_ratio:.1%} of the tolerance ({worst.case}, output {worst.output})"
    )


def _time_rows(timing: Timing | None) -> list[tuple[str, str]]:
    if timing is None:
        return [("time", "not measured"), ("speed-up", "not measured")]
    rows = [
        (
            "time",
            "; ".join(f"{t.contender} {_interval(t.device_median_us, '.1f')} us" for t in timing.times),
        )
    ]
    for speedup in timing.speedups:
        rows.append(
            (f"vs {speedup.baseline}", f"{_interval(speedup.device, '.3f')}x device, {speedup.how}"),
        )
    for baseline, reason in timing.baseline_failures.items():
        rows.append((f"vs {baseline}", f"not measured: {reason}"))
    return rows


def _interval(interval: Interval, form: str) -> str:
    return f"{interval.point:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def verdict_json(evidence: Evidence, path: str) -> dict[str, Any]:
    """Return the JSON object of a judgement."""
    timing = evidence.verdict.timing if isinstance(evidence.verdict, Passed) else None
    return {
        "schema_version": evidence.schema_version,
        "problem": {"name": evidence.problem.name, "id": evidence.problem.id},
        "candidate": evidence.candidate.id,
        "device": evidence.device,
        "protocol": evidence.protocol,
        "seed": evidence.seed,
        "verdict": evidence.verdict,
        "protections": evidence.protections,
        "gates": {report.gate: report for report in evidence.gates},
        "errors": evidence.errors,
        "speedups": timing.speedups if timing else "not measured",
        "reward": evidence.reward.value,
        "reward_rule": evidence.reward.rule,
        "reward_why": evidence.reward.why,
        "evidence": path,
    }


def exit_code(verdict: Verdict) -> int:
    """Return 0 for passed, 1 for the candidate's fault, 2 for the problem's, 3 for the machine's."""
    if isinstance(verdict, Passed):
        return 0
    if isinstance(verdict, Rejection):
        return 1
    return 2 if verdict.__struct_config__.tag == "problem-fault" else 3
