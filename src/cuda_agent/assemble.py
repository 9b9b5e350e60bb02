"""Makes live objects from names: the only module that knows which implementation stands behind which name."""

from __future__ import annotations

import difflib
import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cuda_agent import __version__, emulator
from cuda_agent.errors import UserError
from cuda_agent.gates.compile import CompileGate
from cuda_agent.gates.devices import installed_torch
from cuda_agent.gates.inspection import inspect_problem, trace_problem
from cuda_agent.gates.judge import Judge
from cuda_agent.gates.profile import FINAL, QUICK, ProfileGate
from cuda_agent.gates.protocols import VerifyProtocol, protocol_named
from cuda_agent.gates.source import SourceGate
from cuda_agent.gates.toolkit import Toolkit, discover
from cuda_agent.gates.verify import VerifyGate
from cuda_agent.records.episode import Briefing
from cuda_agent.records.evidence import Device, Environment
from cuda_agent.records.graph import TracedGraph
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.verdict import Gate, GateReport
from cuda_agent.rewards.milestones import milestones
from cuda_agent.sandbox.contract import Sandbox
from cuda_agent.sandbox.local import LocalSandbox
from cuda_agent.store.cache_folder import cache_folder

POLICIES = {
    "composer": "cuda_agent.policies.composer:Composer",
}
"""Name on the command line to dotted path."""

LEAST_SHARED_MEMORY_BYTES = 1 << 30
"""Workers' files go to /dev/shm when it has at least this much room: inputs and outputs pass through it."""


@dataclass(frozen=True)
class Session:
    """Everything one command needs to judge candidates of one problem."""

    problem: Problem
    device: Device
    protocol: VerifyProtocol
    judge: Judge
    sandbox: Sandbox
    scratch: Path
    description: Future[ProblemDescription]
    """Being found out while the caller goes on; raises `ProblemError` when the problem can't be used."""

    def briefing(self, *, turn_limit: int, time_limit_s: float) -> Briefing:
        """Return what a policy is told at the start; raises `ProblemError` when the problem can't be used."""
        traced = self.trace()
        return Briefing(
            problem=self.problem,
            description=self.description.result(),
            graph=traced if isinstance(traced, TracedGraph) else None,
            untraced=traced if isinstance(traced, str) else "",
            device=self.device.name,
            architecture=self.device.architecture,
            multiprocessors=self.device.multiprocessors,
            turn_limit=turn_limit,
            time_limit_s=time_limit_s,
        )

    def trace(self) -> TracedGraph | str:
        """Return the reference's operations at the device's shapes, or why they can't be listed."""
        return trace_problem(
            self.problem,
            self.description.result(),
            gpu=self.device.name != "emulated",
            sandbox=self.sandbox,
            scratch=self.scratch,
        )


@contextmanager
def open_session(
    problem: Problem,
    *,
    device: Device,
    protocol: str,
    seed: int | None,
    on_report: Callable[[GateReport], None],
    on_progress: Callable[[Gate, str], None],
    fresh_baselines: bool = False,
) -> Generator[Session]:
    """Make a judge for `problem` and start looking at the problem; everything is released at the end.

    Raises:
        UserError: no such protocol.
        ToolkitError: nothing can be compiled here.
    """
    chosen = protocol_named(protocol)
    toolkit = discover()
    sandbox = open_sandbox()
    scratch = open_scratch()
    try:
        sandbox.warm()
        gpu = device.name != "emulated"
        with ThreadPoolExecutor(1) as background:
            description = background.submit(inspect_problem, problem, gpu=gpu, sandbox=sandbox, scratch=scratch)
            final = msgspec.structs.replace(FINAL, fresh_baselines=fresh_baselines)
            judge = Judge(
                problem=problem,
                describe=description.result,
                device=device,
                environment=environment(toolkit),
                protocol=chosen,
                seed=seed,
                source=SourceGate(),
                compile=open_compile_gate(toolkit),
                verify=VerifyGate(sandbox=sandbox, scratch=scratch),
                profile=ProfileGate(sandbox=sandbox, scratch=scratch, cache_folder=cache_folder()),
                quick=QUICK,
                final=final,
                reward=milestones,
                on_report=on_report,
                on_progress=on_progress,
            )
            yield Session(problem, device, chosen, judge, sandbox, scratch, description)
    finally:
        sandbox.close()
        shutil.rmtree(scratch, ignore_errors=True)


def open_sandbox() -> LocalSandbox:
    """Return the place where problems and candidates run."""
    return LocalSandbox()


def open_scratch() -> Path:
    """Return a fresh folder for workers' files, in memory where there is room."""
    shared = Path("/dev/shm")
    roomy = (
        shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > LEAST_SHARED_MEMORY_BYTES
    )
    return Path(tempfile.mkdtemp(prefix="cuda-agent-", dir=shared if roomy else None))


def open_compile_gate(toolkit: Toolkit) -> CompileGate:
    """Return the compile gate with this machine's compilers."""
    return CompileGate(
        toolkit=toolkit,
        cache_folder=cache_folder(),
        emulator_library=emulator.core_library,
        emulator_headers=emulator.host_headers(),
    )


def open_policy(name: str, **settings: Any) -> Any:
    """Return a policy by name; raises `UserError` with the names there are."""
    if name not in POLICIES:
        close = difflib.get_close_matches(name, POLICIES, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"--policy {name}: there is no such policy{hint}. There is: {', '.join(POLICIES)}.")
    module, _, attribute = POLICIES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(**settings)


def environment(toolkit: Toolkit) -> Environment:
    """Return the versions that can change a result."""
    return Environment(
        cuda_agent=__version__,
        python=platform.python_version(),
        torch=installed_torch().version,
        toolkit=toolkit.name,
        host_compiler=toolkit.host_version,
        platform=platform.platform(),
        cpu_count=os.cpu_count() or 1,
    )
