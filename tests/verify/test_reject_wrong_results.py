"""Reject candidates whose results are wrong, and say where."""

from __future__ import annotations

import pytest

from cuda_agent.gates.verify import Verified
from cuda_agent.records.verdict import BrokeContract, Verdict, WrongOutput
from tests.verify.judging import SCALED_SOFTMAX, Bench, model_new, plain

RIGHT = "torch.softmax(x * self.scale, dim=-1)"


def rejected(result: Verified | Verdict) -> WrongOutput:
    assert isinstance(result, WrongOutput), result
    return result


def broken(result: Verified | Verdict) -> BrokeContract:
    assert isinstance(result, BrokeContract), result
    return result


class TestValues:
    def test_one_wrong_index_is_reported_with_both_values_and_the_count(self, bench: Bench) -> None:
        candidate = model_new(f"y = {RIGHT}\nif x.shape[0] == 8: y[3, 7] = 0.5\nreturn y", scale=True)
        verdict = rejected(bench.judge(SCALED_SOFTMAX, candidate))
        assert verdict.first_bad_index == (3, 7)
        assert verdict.got == "0.5"
        assert 0 < float(verdict.expected) < 0.5
        assert (verdict.bad_count, verdict.total_count) == (1, 264)
        assert verdict.message.startswith(
            f"The output differs at [3, 7]: expected {verdict.expected}, got 0.5; 1 of 264 values are wrong"
        )
        assert "float32[8, 33]" in verdict.message
        assert "--seed 20" in verdict.message

    def test_an_error_on_one_shape_variant_only_is_found_there(self, bench: Bench) -> None:
        candidate = model_new(f"y = {RIGHT}\nif x.shape[0] == 5: y[4, 0] += 0.1\nreturn y", scale=True)
        assert rejected(bench.judge(SCALED_SOFTMAX, candidate)).case == "variant 1"

    def test_paper_looks_at_the_default_shape_only(self, bench: Bench) -> None:
        candidate = model_new(f"y = {RIGHT}\nif x.shape[0] == 5: y[4, 0] += 0.1\nreturn y", scale=True)
        result = bench.judge(SCALED_SOFTMAX, candidate, protocol="paper")
        assert isinstance(result, Verified)
        assert result.trials == 5

    def test_unwritten_values_are_recognised(self, bench: Bench) -> None:
        candidate = model_new(f"y = torch.empty_like(x)\ny[..., :32] = {RIGHT}[..., :32]\nreturn y", scale=True)
        verdict = rejected(bench.judge(SCALED_SOFTMAX, candidate))
        assert verdict.bad_count == 8
        assert "never written" in verdict.message
        assert "indices 32 to 32 of dimension 1 (size 33): check the tail" in verdict.message

    def test_a_result_that_is_never_written_does_not_pass(self, bench: Bench) -> None:
        verdict = rejected(bench.judge(SCALED_SOFTMAX, model_new("return torch.empty_like(x)", scale=True)))
        assert verdict.bad_count == verdict.total_count
        assert "never written" in verdict.message

    def test_an_accumulator_that_is_never_cleared_does_not_pass(self, bench: Bench) -> None:
        problem = plain("return x.sum(dim=0)")
        candidate = model_new("y = torch.empty(x.shape[1])\nfor row in x: y += row\nreturn y")
        assert rejected(bench.judge(problem, candidate)).bad_count == 33

    def test_zeros_do_not_pass_where_right_values_are_tiny(self, bench: Bench) -> None:
        problem = plain("return torch.softmax(x, dim=-1) * 1e-6")
        verdict = rejected(bench.judge(problem, model_new("return torch.zeros_like(x)")))
        assert "All wrong values are exactly zero" in verdict.message

    def test_a_constant_does_not_pass_for_a_mean_of_many(self, bench: Bench) -> None:
        problem = plain("return x.mean(dim=-1)", inputs="torch.randn(4, 20000)")
        assert rejected(bench.judge(problem, model_new("return torch.zeros(x.shape[0])"))).gate == "verify"

    def test_nan_does_not_pass_for_a_number(self, bench: Bench) -> None:
        candidate = model_new(f"y = {RIGHT}\ny[0, 0] = float('nan')\nreturn y", scale=True)
        verdict = rejected(bench.judge(SCALED_SOFTMAX, candidate))
        assert (verdict.got, verdict.bad_count) == ("nan", 1)

    def test_a_number_does_not_pass_for_nan(self, bench: Bench) -> None:
        problem = plain("return torch.log(x)")
        verdict = rejected(bench.judge(problem, model_new("return torch.log(x.abs())")))
        assert verdict.expected == "nan"

    def test_softmax_without_subtracting_the_maximum_overflows(self, bench: Bench) -> None:
        problem = plain("return torch.softmax(x, dim=-1)", inputs="torch.rand(8, 33) * 10")
        candidate = model_new("e = torch.exp(x)\nreturn e / e.sum(-1, keepdim=True)")
        verdict = rejected(bench.judge(problem, candidate))
        assert "times 10" in verdict.message or "late spike" in verdict.message

    def test_relying_on_positive_inputs_is_found(self, bench: Bench) -> None:
        problem = plain("return torch.relu(x)", inputs="torch.rand(8, 33)")
        assert "mixed signs" in rejected(bench.judge(problem, model_new("return x.clone()"))).message

    def test_half_precision_does_not_pass_for_float32(self, bench: Bench) -> None:
        problem = plain("return x @ y", inputs="torch.randn(16, 512), torch.randn(512, 16)", arguments="x, y")
        candidate = model_new("return (x.bfloat16() @ rest[0].bfloat16()).float()")
        assert rejected(bench.judge(problem, candidate)).check == "values"

    def test_integers_are_compared_exactly(self, bench: Bench) -> None:
        problem = plain("return (x * 1000).round().to(torch.int64)")
        candidate = model_new("y = (x * 1000).round().to(torch.int64)\ny[2, 2] += 1\nreturn y")
        assert rejected(bench.judge(problem, candidate)).first_bad_index == (2, 2)

    def test_the_second_output_is_checked_too(self, bench: Bench) -> None:
        problem = plain("return x.sum(-1), x.amax(-1)")
        verdict = rejected(bench.judge(problem, model_new("return x.sum(-1), x.amax(-1) + 1")))
        assert verdict.output == 1
        assert verdict.message.startswith("Output 1 differs at [0]")


class TestMemoryOfEarlierCalls:
    def test_a_result_kept_from_the_first_call_is_recognised(self, bench: Bench) -> None:
        candidate = model_new(
            f"if self.kept is None: self.kept = {RIGHT}\nreturn self.kept.clone()", init="self.kept = None", scale=True
        )
        verdict = rejected(bench.judge(SCALED_SOFTMAX, candidate, protocol="paper"))
        assert "had the very same bytes: don't keep results between calls" in verdict.message

    def test_a_result_kept_by_address_is_wrong_once_the_buffer_has_other_contents(self, bench: Bench) -> None:
        candidate = model_new(
            "key = (x.data_ptr(), x._version, x.shape)\n"
            f"if key not in self.kept: self.kept[key] = {RIGHT}\n"
            "return self.kept[key].clone()",
            init="self.kept = {}",
            scale=True,
        )
        assert rejected(bench.judge(SCALED_SOFTMAX, candidate)).check == "values"

    def test_weights_kept_from_the_first_call_go_stale(self, bench: Bench) -> None:
        candidate = model_new(
            "if self.kept is None: self.kept = self.scale.detach().clone()\n"
            "return torch.softmax(x * self.kept, dim=-1)",
            init="self.kept = None",
            scale=True,
        )
        assert rejected(bench.judge(SCALED_SOFTMAX, candidate)).check == "values"

    def test_a_buffer_reused_for_every_result_breaks_the_contract(self, bench: Bench) -> None:
        candidate = model_new(
            f"y = {RIGHT}\n"
            "if x.shape not in self.out: self.out[x.shape] = torch.empty_like(x)\n"
            "return self.out[x.shape].copy_(y)",
            init="self.out = {}",
            scale=True,
        )
        verdict = broken(bench.judge(SCALED_SOFTMAX, candidate))
        assert verdict.check == "fresh output"
        assert "changed output 0 of the call before" in verdict.message


class TestStructure:
    @pytest.mark.parametrize(
        ("forward", "check", "says"),
        [
            (f"return ({RIGHT}).double()", "output dtype", "must be float32, as the reference's is; it is float64"),
            (f"return ({RIGHT}).half()", "output dtype", "must be float32, as the reference's is; it is float16"),
            (f"return ({RIGHT})[..., :1]", "output shape", "must have shape [8, 33]; it has [8, 1]"),
            (f"return ({RIGHT}).unsqueeze(0)", "output shape", "must have shape [8, 33]; it has [1, 8, 33]"),
            (f"return [{RIGHT}]", "output structure", "must be a tensor; it is a list of 1"),
            ("return None", "output structure", "must be a tensor; it is None"),
            (f"return ({RIGHT}).to_sparse()", "output type", "it is a sparse_coo Tensor"),
            (f"return ({RIGHT}).to('meta')", "output type", "it is a Tensor on the meta device"),
            (f"return ({RIGHT}).as_subclass(Mine)", "output type", "it is a Mine"),
        ],
    )
    def test_a_result_of_another_kind_breaks_the_contract(
        self, bench: Bench, forward: str, check: str, says: str
    ) -> None:
        candidate = model_new(forward, head="class Mine(torch.Tensor): pass", scale=True)
        verdict = broken(bench.judge(SCALED_SOFTMAX, candidate))
        assert verdict.check == check
        assert says in verdict.message

    def test_a_missing_output_is_counted(self, bench: Bench) -> None:
        verdict = broken(bench.judge(plain("return x + 1, x + 2"), model_new("return (x + 1,)")))
        assert "must hold 2 values; it holds 1" in verdict.message

    def test_a_missing_key_is_named(self, bench: Bench) -> None:
        problem = plain("return {'a': x + 1, 'b': [x + 2]}")
        verdict = broken(bench.judge(problem, model_new("return {'a': x + 1}")))
        assert "must have the keys 'a', 'b'; it has 'a'" in verdict.message


class TestInputs:
    def test_changing_an_input_breaks_the_contract(self, bench: Bench) -> None:
        verdict = broken(bench.judge(plain("return x * 2"), model_new("y = x * 2\nx.zero_()\nreturn y")))
        assert verdict.check == "inputs unchanged"
        assert "changed input 0 (float32[8, 33])" in verdict.message

    def test_a_result_in_an_inputs_memory_breaks_the_contract(self, bench: Bench) -> None:
        verdict = broken(bench.judge(plain("return x + 0"), model_new("return x.view(x.shape)")))
        assert verdict.check == "fresh output"
        assert "lies in the memory of input 0" in verdict.message
