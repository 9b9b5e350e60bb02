"""The two verify protocols as records, and the trials that each of them draws from a root seed.

`strict` is what we stand behind; `paper` is comparable with published numbers. Both run every structural check.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import random
from typing import Literal

import msgspec

from cuda_agent.errors import UserError
from cuda_agent.records.problem import Case, Precision, ProblemDescription, ValueSpec
from cuda_agent.records.verification import Distribution, OutputStats

POISON_BYTES = (0xFE, 0x7B)
"""What unwritten memory holds, in turn: 0xFEFEFEFE is -1.7e38 as float32 and 0x7B7B7B7B is 1.3e36, so that neither a
maximum nor a minimum over unwritten memory passes."""
DEVICE_POISON_BYTES = (0xFE, 0x7B, 0xFF)
"""The same on a CUDA device, and NaN in every floating type."""

_ITEM_BYTES = {
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


class VerifyProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """What the verify gate tries and how far results may be off."""

    name: Literal["paper", "strict"]
    trials: int
    """Trials with inputs as the problem makes them, on the default case."""
    variant_trials: int
    """The same on every other case; 0 leaves the other cases out."""
    distributions: tuple[Distribution, ...]
    """Changed inputs tried once each on the default case, where the reference stays sound on them."""
    variant_distributions: tuple[Distribution, ...]
    """The same on every other case."""
    changed_weights: bool
    """Give half of the trials other parameters, loaded into the same instance."""
    reuse_buffers: bool
    """Put some trials' inputs on top of those of the call before."""
    oracle: bool
    """Expected values come from the reference in float64; else from the reference itself."""
    rtol: dict[str, float]
    """Relative bound by the coarser of the output's dtype and the declared precision, before the reference's own
    error is taken into account."""
    reference_error_factor: float
    """The bound is at least this times the reference's own error; 0: the reference's error does not count."""
    absolute: float | None
    """Absolute bound. None: `rtol` times the root mean square of the expected output."""
    declared_tolerance: bool
    """Whether a problem's own `TOLERANCE` replaces these bounds."""
    tf32: Literal["as declared", "as torch ships"]
    """Of the reference. `as torch ships`: matrix products in float32, cuDNN convolutions in TF32."""


STRICT = VerifyProtocol(
    name="strict",
    # Three calls on different data in one instance are what unmasks a result kept from the first call.
    trials=3,
    variant_trials=2,
    distributions=(
        "mixed signs",
        "late spike",
        "times 10",
        "times 0.01",
        "constant rows",
        "zeros",
    ),
    variant_distributions=("mixed signs", "late spike"),
    changed_weights=True,
    reuse_buffers=True,
    oracle=True,
    rtol={
        # Source: KernelBench's bound for float32 since Nov 2025 (commit 423217d): 1e-4. A correct matrix product
        # with K = 4096 errs by 1e-6 of its output's size, one through TF32 or half by 4e-4 (10-bit mantissa, eps/2
        # = 4.9e-4, over random signs).
        "float32": 1e-4,
        "float64": 1e-4,
        # Four units in the last place of a 10-bit mantissa (2^-11 = 4.9e-4): inputs rounded, output rounded.
        "tf32": 2e-3,
        "float16": 2e-3,
        # Four of a 7-bit mantissa (2^-8 = 3.9e-3); also torch.testing.assert_close's default for bfloat16.
        "bfloat16": 1.6e-2,
    },
    # Order of summation alone makes equally good kernels differ by a few times: at K = 2^20, float32, torch's
    # blocked sum errs 4 times less than a plain two-level tree. 8 leaves room and is far from half precision.
    reference_error_factor=8.0,
    absolute=None,
    declared_tolerance=True,
    tf32="as declared",
)

PAPER = VerifyProtocol(
    name="paper",
    # Source: CUDA Agent section 3.2 and its released verification script: 5 random inputs, atol = rtol = 1e-2.
    trials=5,
    variant_trials=0,
    distributions=(),
    variant_distributions=(),
    changed_weights=False,
    reuse_buffers=False,
    oracle=False,
    rtol=dict.fromkeys(("float32", "float64", "tf32", "float16", "bfloat16"), 1e-2),
    reference_error_factor=0.0,
    absolute=1e-2,
    declared_tolerance=False,
    tf32="as torch ships",
)

PROTOCOLS: dict[str, VerifyProtocol] = {"strict": STRICT, "paper": PAPER}

LARGEST_BOUND = 0.1
"""A relative bound above this judges nothing: the reference itself is then wrong in its first digit."""
CHANGED_INPUTS_FACTOR = 2.0
"""Changed inputs are tried only where they need at most this times the bound of inputs as given: what amplifies
the reference's own rounding error that much tests luck."""
LARGE_BYTES = 256 << 20
"""A case with more bytes of inputs and outputs gets fewer trials: one is some tenths of a second then."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the candidate and its reference."""

    number: int
    case: str
    distribution: Distribution
    weights: int
    """Number of the set of parameters; 0 is the model as constructed."""
    reuse_buffers: bool
    seed: int
    """Of its inputs; never told to the candidate's process."""
    schedule: int
    """Order of warps on the emulated device."""
    poison: int


def plan(protocol: VerifyProtocol, description: ProblemDescription, *, device: str, seed: int) -> tuple[Trial, ...]:
    """Return the trials of `protocol` on `device` in the order to run, all drawn from `seed`.

    The first two are plain trials of the default case; the rest come in an order that the seed decides, so that
    shapes, distributions and weights alternate.
    """
    emulated = device == "emulated"
    cases = description.cpu_cases if emulated else description.gpu_cases
    rng = random.Random(_derive(seed, protocol.name, "order"))
    kinds: list[tuple[str, Distribution]] = []
    for position, case in enumerate(cases):
        if position > 0 and protocol.variant_trials == 0:
            break
        plain = protocol.trials if position == 0 else protocol.variant_trials
        changed = protocol.distributions if position == 0 else protocol.variant_distributions
        if case_bytes(case) > LARGE_BYTES and protocol.name == "strict":
            plain = 3 if position == 0 else 1
            changed = changed[:1] + tuple(rng.sample(changed[1:], min(1, len(changed) - 1)))
        kinds += [(case.name, "as given")] * plain
        kinds += [(case.name, distribution) for distribution in changed]
    rest = kinds[2:]
    rng.shuffle(rest)
    poisons = POISON_BYTES if emulated else DEVICE_POISON_BYTES
    trials = []
    weights = 0
    for number, (name, distribution) in enumerate([*kinds[:2], *rest]):
        changes = protocol.changed_weights and description.parameter_count > 0 and number >= 2
        if changes:
            # Every third trial or so, so that a cache of the second set is unmasked too.
            weights = rng.choice((weights, weights, 1 + weights % 2)) if weights else 1
        trials.append(
            Trial(
                number=number,
                case=name,
                distribution=distribution,
                weights=weights,
                reuse_buffers=protocol.reuse_buffers and number % 3 == 2,
                seed=_derive(seed, protocol.name, name, str(number)),
                # 0 ascending, 1 descending, then pseudo-random orders.
                schedule=number if number < 2 else 2 + _derive(seed, "schedule", str(number)) % (1 << 30),
                poison=poisons[number % len(poisons)],
            )
        )
    return tuple(trials)


def weights_seed(protocol: VerifyProtocol, seed: int, number: int) -> int:
    """Return the seed of a set of parameters."""
    return _derive(seed, protocol.name, "weights", str(number))


def base_rtol(protocol: VerifyProtocol, dtype: str, precision: Precision) -> float:
    """Return the relative bound for one output before the reference's own error counts.

    A value to check by hand: strict, a float32 output of a problem that declares bf16: 1.6e-2.
    """
    declared = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    of_output = protocol.rtol.get(dtype.replace("complex64", "float32").replace("complex128", "float64"))
    # Types without an own entry (float8) are coarser than bfloat16: their steps decide, not this bound.
    return max(protocol.rtol[declared], of_output if of_output is not None else 0.125)


def calibrated_rtol(protocol: VerifyProtocol, stats: OutputStats, precision: Precision) -> float:
    """Return the relative bound for one output: the base, or a multiple of the reference's own error.

    A value to check by hand: strict, float32, reference off by 5e-5 of the output's size: 8 x 5e-5 = 4e-4.
    """
    # Where the output amplifies rounding, a reference that happens to be exact says nothing about good arithmetic.
    own = max(stats.max_scaled_error or 0.0, stats.sensitivity or 0.0)
    return max(base_rtol(protocol, stats.dtype, precision), protocol.reference_error_factor * own)


def case_bytes(case: Case) -> int:
    """Return the bytes of all inputs and outputs of a case."""
    return sum(_bytes(value) for value in (*case.inputs, *case.outputs))


def _bytes(value: ValueSpec) -> int:
    if value.kind != "tensor":
        return 0
    return math.prod(value.shape) * _ITEM_BYTES.get(value.dtype, 4)


def _derive(seed: int, *labels: str) -> int:
    """A seed of 48 bits that tells nothing about `seed` or its siblings."""
    digest = hashlib.sha256("\0".join((str(seed), *labels)).encode()).digest()
    return int.from_bytes(digest[:6], "big")


def protocol_named(name: str) -> VerifyProtocol:
    """Return the protocol called `name`; raises `UserError` with the names there are."""
    if name not in PROTOCOLS:
        close = difflib.get_close_matches(name, PROTOCOLS, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"--protocol {name}: there is no such protocol{hint}. Use {' or '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]
