"""Look at a problem before anything is judged: its declarations, its derived shapes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cuda_agent.errors import ProblemError
from cuda_agent.gates import inspection
from cuda_agent.gates.inspection import inspect_problem
from cuda_agent.problems.source import problem_of
from cuda_agent.records.problem import ProblemDescription, Tolerance
from cuda_agent.sandbox.local import LocalSandbox
from cuda_agent.worker.problem_module import CPU_ELEMENTS, LoadedProblem, describe

PLAIN = """
import torch
from torch import nn

ROWS = 8

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return torch.relu(x * self.scale)

def get_inputs():
    return [torch.randn(ROWS, 24)]

def get_init_inputs():
    return [24]
"""

LARGE = PLAIN.replace("ROWS = 8", "ROWS = 65536\nWIDTH = 4096").replace("24", "WIDTH")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(keep_warm=False)
    yield sandbox
    sandbox.close()


def shapes(described: ProblemDescription, where: str = "cpu") -> dict[str, tuple[int, ...]]:
    cases = described.cpu_cases if where == "cpu" else described.gpu_cases
    return {case.name: case.inputs[0].shape for case in cases}


class TestDeclarations:
    def test_defaults(self) -> None:
        described = describe(PLAIN)
        assert (described.precision, described.tolerance, described.training) == ("fp32", None, False)
        assert described.parameter_count == 24
        assert [spec.text for spec in described.init_inputs] == ["24"]

    @pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
    def test_precisions(self, precision: str) -> None:
        assert describe(f"{PLAIN}\nPRECISION = {precision!r}", gpu=False).precision == precision

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("1e-3", Tolerance(rtol=1e-3, atol=1e-3)),
            ("0", Tolerance(rtol=0, atol=0)),
            ("{'rtol': 1e-2, 'atol': 1}", Tolerance(rtol=1e-2, atol=1)),
        ],
    )
    def test_tolerances(self, written: str, read: Tolerance) -> None:
        assert describe(f"{PLAIN}\nTOLERANCE = {written}", gpu=False).tolerance == read

    def test_train_mode(self) -> None:
        assert describe(f"{PLAIN}\nTRAINING = True", gpu=False).training

    def test_init_inputs_by_keyword(self) -> None:
        described = describe(PLAIN.replace("return [24]", "return {'width': 24}"), gpu=False)
        assert [spec.text for spec in described.init_inputs] == ["24"]

    @pytest.mark.parametrize(
        ("variants", "names"),
        [
            ("[lambda: [torch.randn(3, 24)], [torch.randn(1, 24)]]", ["default", "variant 1", "variant 2"]),
            ("{'thin': [torch.randn(3, 24)], 'batch 2': lambda: [torch.randn(1, 24)]}", ["default", "thin", "batch 2"]),
        ],
    )
    def test_variants_are_lists_or_functions_by_place_or_name(self, variants: str, names: list[str]) -> None:
        described = describe(f"{PLAIN}\ndef get_input_variants():\n    return {variants}\n")
        for where in ("cpu", "gpu"):
            assert list(shapes(described, where)) == names
            assert list(shapes(described, where).values()) == [(8, 24), (3, 24), (1, 24)]
        assert not described.fixed_shape

    def test_cpu_shapes_replace_the_others_on_the_cpu_only(self) -> None:
        extra = "\ndef get_cpu_inputs():\n    return [torch.randn(2, 5)]\ndef get_cpu_init_inputs():\n    return [5]\n"
        extra += "def get_cpu_input_variants():\n    return [[torch.randn(3, 5)]]\n"
        described = describe(LARGE + extra)
        assert shapes(described) == {"default": (2, 5), "variant 1": (3, 5)}
        assert shapes(described, "gpu") == {"default": (65536, 4096)}
        assert described.cpu_source == ""

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ("PRECISION = 'fp8'", "PRECISION is 'fp8'; it must be one of fp32, tf32, bf16, fp16."),
            ("PRECISION = torch.float16", "PRECISION is torch.float16; it must be one of"),
            ("TOLERANCE = 'tight'", "TOLERANCE is 'tight'; it must be a number from 0, or a dict with such rtol and atol."),
            ("TOLERANCE = -1", "TOLERANCE is -1; it must be"),
            ("TOLERANCE = float('nan')", "TOLERANCE is nan; it must be"),
            ("TOLERANCE = True", "TOLERANCE is True; it must be"),
            ("TOLERANCE = {'rtol': 1e-3}", "TOLERANCE is {'rtol': 0.001}; it must be"),
            ("TOLERANCE = {'rtol': 'a', 'atol': 1}", "TOLERANCE is {'rtol': 'a', 'atol': 1}; it must be"),
            ("TOLERANCE = {'rtol': -1, 'atol': 1}", "TOLERANCE is {'rtol': -1, 'atol': 1}; it must be"),
            ("TRAINING = 'no'", "TRAINING is 'no'; it must be True or False."),
            ("def get_input_variants():\n    return 5", "get_input_variants() must return a list or dict whose entries"),
            ("def get_input_variants():\n    return [5]", "for case 'variant 1' it returned int"),
            ("def get_input_variants():\n    raise KeyError('x')", "get_input_variants() raised KeyError at problem.py:"),
            ("def get_input_variants():\n    return {'default': [torch.randn(1, 24)]}", "get_input_variants() has a case named 'default'"),
            ("def get_input_variants():\n    return [[torch.randn(2, 23)]]", "forward() with float32[2, 23] raised RuntimeError at problem.py:13"),
        ],
    )  # fmt: skip
    def test_a_wrong_declaration_is_quoted(self, extra: str, message: str) -> None:
        with pytest.raises(ProblemError) as raised:
            describe(f"{PLAIN}\n{extra}\n", gpu=False)
        assert message in str(raised.value)


class TestDerived:
    def test_small_shapes_come_from_the_constants_equal_ones_alike(self) -> None:
        described = describe(LARGE)
        rows, width = shapes(described)["default"]
        assert 2 * rows * width + width <= CPU_ELEMENTS
        assert 65536 % rows == 4096 % width == 0
        assert {case.origin for case in described.cpu_cases} == {"derived"}
        assert f"ROWS = {rows}\nWIDTH = {width}" in described.cpu_source
        assert shapes(described, "gpu")["default"] == (65536, 4096)
        assert described.parameter_count == width

    def test_numbers_that_must_stay_are_left_alone(self) -> None:
        text = LARGE.replace(
            "return torch.relu(x * self.scale)", "return torch.relu(x * self.scale).view(ROWS, 64, -1)"
        )
        described = describe(text, gpu=False)
        rows, width = shapes(described)["default"]
        assert described.cpu_cases[0].outputs[0].shape == (rows, 64, width // 64)

    def test_what_cannot_be_made_small_asks_for_shapes(self) -> None:
        text = PLAIN.replace("ROWS = 8", "ROWS = 99999")
        with pytest.raises(ProblemError, match=r"no smaller ones could be derived .* Add get_cpu_inputs\(\)"):
            describe(text, gpu=False)

    def test_another_batch_size_is_derived_where_rows_are_independent(self) -> None:
        described = describe(PLAIN)
        assert shapes(described) == {"default": (8, 24), "batch 7": (7, 24)}
        assert shapes(described, "gpu") == {"default": (8, 24), "batch 7": (7, 24)}
        assert not described.fixed_shape
        loaded = LoadedProblem(PLAIN, shapes="cpu")
        assert torch.equal(loaded.inputs("batch 7", 3)[0], loaded.inputs("default", 3)[0][:7])

    @pytest.mark.parametrize(
        "forward", ["return x - x.mean(0)", "return x.sum()", "return x.reshape(8, 6, 4)", "return x.T.contiguous()"]
    )
    def test_and_not_where_they_are_not(self, forward: str) -> None:
        described = describe(PLAIN.replace("return torch.relu(x * self.scale)", forward))
        assert list(shapes(described)) == ["default"]
        assert described.fixed_shape

    def test_inputs_and_weights_follow_their_seeds(self) -> None:
        loaded = LoadedProblem(PLAIN, shapes="cpu")
        first, again, other = (loaded.inputs("default", seed)[0] for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        weights = [loaded.make_model(seed).scale.detach() for seed in (1, 1, 2)]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])


class TestFaults:
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("ROWS = 8", "ROWS = 1 / 0", "Importing the problem raised ZeroDivisionError at problem.py:5: division by zero"),
            ("import torch\n", "import torch\nimport no_such_package\n", "The problem imports no_such_package, which is not installed here (problem.py:3)"),
            ("ROWS = 8", "raise SystemExit(3)", "Importing the problem raised SystemExit at problem.py:5: 3"),
            ("class Model(", "class Other(", "Model is missing"),
            ("class Model(nn.Module)", "class Model", "Model must be a class derived from torch.nn.Module"),
            ("def get_inputs", "def inputs", "get_inputs is missing"),
            ("return [24]", "return 24", "get_init_inputs() must return a list of Model's arguments (or a dict by keyword); it returned int. Return []"),
            ("return [24]", "return [24, 7]", "Model(...) raised TypeError"),
            ("return [torch.randn(ROWS, 24)]", "return torch.randn(ROWS, 24)", "get_inputs() must return a list of forward's arguments; for case 'default' it returned Tensor. Return [x]"),
            ("return [torch.randn(ROWS, 24)]", "return [torch.randn(ROWS, 23)]", "forward() with float32[8, 23] raised RuntimeError at problem.py:13: The size of tensor"),
            ("return [torch.randn(ROWS, 24)]", "return []", "forward() with no inputs raised TypeError"),
            ("return torch.relu(x * self.scale)", "return None", "Model.forward must return a tensor (or a tuple, list or dict with tensors); it returned NoneType."),
            ("return torch.relu(x * self.scale)", "return float(x.sum())", "it returned float."),
            ("return torch.relu(x * self.scale)", "return x + torch.rand_like(x)", "Model.forward gives different results for the same inputs"),
        ],
    )  # fmt: skip
    def test_a_problem_that_cannot_be_used_says_what_to_fix(self, old: str, new: str, message: str) -> None:
        assert PLAIN.count(old) == 1
        with pytest.raises(ProblemError) as raised:
            describe(PLAIN.replace(old, new))
        assert message in str(raised.value)

    def test_tuples_and_dicts_of_tensors_are_outputs(self) -> None:
        described = describe(
            PLAIN.replace("return torch.relu(x * self.scale)", "return {'a': x, 'b': (x.sum(), x > 0)}")
        )
        assert [spec.dtype for spec in described.cpu_cases[0].outputs] == ["float32", "float32", "bool"]


class TestInItsOwnProcess:
    def inspect(self, source: str, sandbox: LocalSandbox, scratch: Path) -> ProblemDescription:
        problem = problem_of(source, name="level1/1_x", origin="/somewhere/1_x.py")
        return inspect_problem(problem, gpu=False, sandbox=sandbox, scratch=scratch)

    def test_a_good_one_is_described(self, sandbox: LocalSandbox, tmp_path: Path) -> None:
        assert shapes(self.inspect(PLAIN, sandbox, tmp_path))["default"] == (8, 24)
        assert list(tmp_path.iterdir()) == []

    def test_a_fault_names_the_problem_and_the_users_file(self, sandbox: LocalSandbox, tmp_path: Path) -> None:
        with pytest.raises(ProblemError, match=r"level1/1_x: Importing the problem raised NameError at 1_x.py:5"):
            self.inspect(PLAIN.replace("ROWS = 8", "ROWS = EIGHT"), sandbox, tmp_path)

    def test_one_that_hangs_is_ended(
        self, sandbox: LocalSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspection, "INSPECT_LIMIT_S", 1.0)
        with pytest.raises(ProblemError, match=r"level1/1_x: .* took longer than 1 s. Look for an endless loop"):
            self.inspect(
                PLAIN.replace("return torch.relu", "while True: pass\n        return torch.relu"), sandbox, tmp_path
            )
        assert list(tmp_path.iterdir()) == []

    def test_one_that_ends_its_process_is_reported(self, sandbox: LocalSandbox, tmp_path: Path) -> None:
        with pytest.raises(ProblemError, match=r"level1/1_x: the process that loads the problem .*before it was done"):
            self.inspect(PLAIN.replace("ROWS = 8", "import os; os._exit(5)"), sandbox, tmp_path)
        with pytest.raises(ProblemError, match=r"SIGSEGV"):
            self.inspect(PLAIN.replace("ROWS = 8", "import os; os.kill(os.getpid(), 11)"), sandbox, tmp_path)
