"""Problems and candidates of the verify tests, and the one call that judges a candidate against a problem."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.gates.inspection import inspect_problem
from cuda_agent.gates.protocols import protocol_named
from cuda_agent.gates.verify import Verified, VerifyGate
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.problem import Problem, ProblemDescription
from cuda_agent.records.verdict import Verdict
from cuda_agent.sandbox.local import LocalSandbox

SCALED_SOFTMAX = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)

def get_inputs():
    return [torch.randn(8, 33)]

def get_init_inputs():
    return [33]

def get_input_variants():
    return [lambda: [torch.randn(5, 33)], lambda: [torch.randn(2, 3, 33)]]
"""

PLAIN = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, {arguments}):
        {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""

NOTHING_BUILT = Build(
    key="none",
    library="",
    target="emulated",
    architectures=("compute_90",),
    launchers=(),
    resources=(),
    warnings=(),
    toolkit="",
    command="",
    seconds=0.0,
    cached=True,
)


def plain(body: str, inputs: str = "torch.randn(8, 33)", arguments: str = "x") -> str:
    """A problem without parameters whose forward is `body`."""
    return PLAIN.format(body=body.strip(), inputs=inputs, arguments=arguments)


def model_new(forward: str, *, init: str = "", head: str = "", scale: bool = False) -> str:
    """The text of a model_new.py; `scale` adds the parameter of `SCALED_SOFTMAX`."""
    lines = ["import torch", "import torch.nn as nn", *head.strip().splitlines(), "class ModelNew(nn.Module):"]
    lines += ["    def __init__(self, *args):", "        super().__init__()"]
    if scale:
        lines.append("        self.scale = nn.Parameter(torch.ones(args[0]))")
    lines += [f"        {line}" for line in init.strip().splitlines()]
    lines.append("    def forward(self, x, *rest):")
    lines += [f"        {line}" for line in forward.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


class Bench:
    """Judges texts; descriptions of problems are kept, since one problem has many candidates."""

    def __init__(self, sandbox: LocalSandbox, scratch: Path) -> None:
        self.sandbox = sandbox
        self.scratch = scratch
        self._descriptions: dict[str, ProblemDescription] = {}

    def describe(self, problem: str) -> ProblemDescription:
        """What the inspecting worker says of the text of a problem."""
        if problem not in self._descriptions:
            self._descriptions[problem] = inspect_problem(
                named(problem), gpu=False, sandbox=self.sandbox, scratch=self.scratch
            )
        return self._descriptions[problem]

    def judge(
        self, problem: str, candidate: str, *, protocol: str = "strict", seed: int = 20, build: Build = NOTHING_BUILT
    ) -> Verified | Verdict:
        """Verify the text of a model_new.py on the emulated device."""
        gate = VerifyGate(sandbox=self.sandbox, scratch=self.scratch)
        return gate.check(
            named(problem),
            self.describe(problem),
            Candidate(id="c" * 16, form="native", files={"model_new.py": candidate}),
            build,
            device="emulated",
            protocol=protocol_named(protocol),
            seed=seed,
            on_progress=lambda text: None,
            on_confined=lambda protections: None,
        )


def named(source: str) -> Problem:
    """The record of a problem's text."""
    return Problem(id="p" * 16, name="test/problem", source=source, origin="a test")
