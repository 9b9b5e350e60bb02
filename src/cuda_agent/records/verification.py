"""What the verify gate and its three workers (reference, candidate, compare) say to each other.

Seeds and expected values are in messages to the reference and compare workers only; nothing here goes to the
candidate but inputs, weights and shapes. Everything the candidate's process replies is a claim.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cuda_agent.records.candidate import Candidate
from cuda_agent.records.protection import Protections

Distribution = Literal["as given", "mixed signs", "times 10", "times 0.01", "late spike", "constant rows", "zeros"]
"""What is done to the floating inputs that the problem makes; `worker/distributions.py` says how and to which."""


class TensorFile(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as raw bytes: contiguous elements in the machine's byte order."""

    file: str
    """Absolute path; empty when the tensor has no elements."""
    dtype: str
    """torch's name without the prefix."""
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    """Strides of the original when it is dense but not contiguous; the file is contiguous all the same."""
    on_device: bool = False
    """Whether the bytes lie in device memory of the process that wrote, and the file only says where."""


class TensorLeaf(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", tag="tensor"):
    """A tensor: an index into the list of tensors next to the tree."""

    index: int


class PlainLeaf(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", tag="plain"):
    """A value that is no tensor."""

    type: str
    """Python type's name."""
    text: str
    """Its repr, cut to 200 characters."""
    pickled: str = ""
    """Base64; only in what the reference hands to the candidate, never in what the candidate returns."""


class SequenceNode(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", tag="sequence"):
    """A list or tuple; the two count as the same."""

    type: Literal["list", "tuple"]
    items: tuple[Tree, ...]


class MappingNode(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", tag="mapping"):
    """A dict; in its own order when it goes to a candidate, by key when results are compared."""

    items: tuple[tuple[str, Tree], ...]
    """Keys by their repr."""
    pickled_keys: str = ""
    """Base64 of the list of keys; like `PlainLeaf.pickled`."""


Tree = TensorLeaf | PlainLeaf | SequenceNode | MappingNode
"""The structure of an argument or a result."""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """A structure with its tensors written to files."""

    tree: Tree
    tensors: tuple[TensorFile, ...]


# --- reference ---


class ReferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`request.json` of a reference worker; holds nothing secret."""

    source: str
    shapes: Literal["cpu", "gpu"]
    device: str
    """torch's name: `cpu`, `cuda:0`."""
    handover: str
    """Folder for what the candidate may see."""
    private: str
    """Folder for expected values."""
    oracle: bool
    """Compute expected values in float64; else the reference's own result is expected."""
    matmul_tf32: bool
    cudnn_tf32: bool


class MakeWeights(msgspec.Struct, frozen=True, kw_only=True, tag="make-weights"):
    """Make a set of parameters and buffers and write it out."""

    number: int
    """0 is the model as constructed; others have every parameter and running statistic changed as well."""
    seed: int


class MakeInputs(msgspec.Struct, frozen=True, kw_only=True, tag="make-inputs"):
    """Make one trial's inputs and write them out."""

    trial: int
    case: str
    seed: int
    distribution: Distribution
    weights: int
    """Number of the set made before."""


class Expect(msgspec.Struct, frozen=True, kw_only=True, tag="expect"):
    """Compute the expected result of the trial whose inputs were made last, and write it out."""

    trial: int
    check_random: bool
    """Run the reference twice under different generator states and report whether results differ."""


class Quit(msgspec.Struct, frozen=True, kw_only=True, tag="quit"):
    """Leave."""


ReferenceCommand = MakeWeights | MakeInputs | Expect | Quit


class ReferenceReady(msgspec.Struct, frozen=True, kw_only=True, tag="reference-ready"):
    """The problem is loaded."""

    init_inputs: Values
    training: bool


class WeightsMade(msgspec.Struct, frozen=True, kw_only=True, tag="weights-made"):
    """A state dict is written out."""

    number: int
    names: tuple[str, ...]
    tensors: tuple[TensorFile, ...]
    """One a name."""
    parameters: int
    """How many of them the seed and number can change."""


class OutputStats(msgspec.Struct, frozen=True, kw_only=True):
    """The reference against the float64 oracle, for one output tensor."""

    dtype: str
    shape: tuple[int, ...]
    floating: bool
    """False for integers and booleans, which are compared exactly."""
    rms: float
    """Root mean square of the expected values that are finite; 0 when there are none."""
    non_finite: int
    """Elements where the reference is NaN or infinite."""
    overflowed: int
    """Elements where the reference is NaN or infinite and the oracle, in the reference's dtype, is not."""
    max_scaled_error: float | None
    """max |reference - oracle| / (|oracle| + rms); None without an oracle."""
    relative_rms_error: float | None
    """||reference - oracle|| / ||oracle||; None without an oracle."""
    sensitivity: float | None = None
    """max |moved oracle - oracle| / (|oracle| + rms) when inputs are moved by one rounding step of float32; None when
    not asked for, which is but for inputs whose output may amplify rounding while the reference happens to be exact."""


class InputsMade(msgspec.Struct, frozen=True, kw_only=True, tag="inputs-made"):
    """A trial's inputs are written out."""

    trial: int
    applied: bool
    """False when the distribution would change nothing: no floating input may be changed so."""
    raised: str
    """What the reference raised on changed inputs, empty when it did not (or was not run)."""
    inputs: Values
    output_bytes: tuple[int, ...]
    """Size of each output tensor, for poisoning memory; empty when the reference was not run."""
    stats: tuple[OutputStats, ...]
    """Of changed inputs, so that the gate can drop them; empty for inputs as given."""


class Expected(msgspec.Struct, frozen=True, kw_only=True, tag="expected"):
    """A trial's expected result is written out."""

    trial: int
    outputs: Values
    """Structure, with shapes and dtypes of the reference; a floating tensor's file holds `float64` or, when it
    is large, `float32`."""
    file_dtypes: tuple[str, ...]
    """dtype in each file."""
    alternatives: tuple[TensorFile | None, ...]
    """Where the oracle differs from the reference in a way that a good candidate may too: its integers (a near tie),
    or its floats where the reference overflowed. Either result is right."""
    stats: tuple[OutputStats, ...]
    oracle: Literal["float64", "reference"]
    no_oracle_why: str
    """Empty with a float64 oracle."""
    changed_inputs: tuple[int, ...]
    """Input tensors that the reference itself changes."""
    shared_inputs: tuple[tuple[int, int], ...]
    """(output, input) pairs where the reference's output lies in the input's memory."""
    random: bool
    """Results differed under another generator state."""
    seconds: float
    """Of one call of the reference."""


class ReferenceFailed(msgspec.Struct, frozen=True, kw_only=True, tag="reference-failed"):
    """The problem's fault, or memory is short; the process ends after it."""

    stage: Literal["load", "weights", "inputs", "run"]
    message: str
    out_of_memory: bool


ReferenceReply = ReferenceReady | WeightsMade | InputsMade | Expected | ReferenceFailed


# --- candidate ---


class CandidateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`request.json` of a candidate worker."""

    candidate: Candidate
    library: str
    """Path of the built `cuda_extension`; empty when there is none."""
    emulated: bool
    """The library is built for the emulated device."""
    device: str
    threads: int
    """Of the emulated device; 0: all."""
    handover: str
    """Folder that weights and inputs are read from."""
    outputs: str
    """Folder to write results to."""
    matmul_tf32: bool
    cudnn_tf32: bool


class Construct(msgspec.Struct, frozen=True, kw_only=True, tag="construct"):
    """Make `ModelNew(*init_inputs)`."""

    init_inputs: Values
    training: bool


class LoadWeights(msgspec.Struct, frozen=True, kw_only=True, tag="load-weights"):
    """`load_state_dict(strict=True)` into the one instance."""

    names: tuple[str, ...]
    tensors: tuple[TensorFile, ...]


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """Call the instance once and write the result out."""

    trial: int
    inputs: Values
    reuse_buffers: bool
    """Put the inputs into the tensors of the call before, at the same addresses, when shapes agree."""
    reload: bool
    """Load the current weights again first, since a call in training mode changes buffers."""
    poison: int
    """Byte that unwritten memory holds."""
    poison_bytes: tuple[int, ...]
    """Sizes of blocks that are likely to be asked for."""
    schedule: int
    """Order of the warps on the emulated device."""
    idle: bool = False
    """Kernels do nothing in this call; a result that is right all the same owes nothing to them."""


CandidateCommand = Construct | LoadWeights | Call | Quit


class Confined(msgspec.Struct, frozen=True, kw_only=True, tag="confined"):
    """The process gave up its rights; said before any code of the candidate is loaded."""

    protections: Protections | None
    """None when that failed."""
    failure: str


class CandidateLoaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """`model_new.py` is imported."""

    poison_works: bool
    """Fresh host memory holds the poison byte; always True on a CUDA device, where memory is filled by us."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """Constructed, or weights loaded."""


class TorchOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of torch's own that computed during a call of the candidate."""

    name: str
    """ATen's, without overload: `mm`."""
    elements: int
    """Read or written, whichever are more, over all its uses in the call."""


class Called(msgspec.Struct, frozen=True, kw_only=True, tag="called"):
    """One call returned; its result is written out."""

    trial: int
    outputs: Values
    devices: tuple[str, ...]
    """Where each output tensor was."""
    types: tuple[str, ...]
    """Python type of each output tensor, `Tensor` for a plain one (or a Parameter)."""
    changed_inputs: tuple[int, ...]
    shared_inputs: tuple[tuple[int, int], ...]
    """(output, input) pairs that share memory."""
    earlier_changed: tuple[int, ...]
    """Outputs of the call before whose values this call changed."""
    launches: int | None
    """Kernels that the emulated device ran since the process started; None on other devices, or with nothing built."""
    torch_work: tuple[TorchOperator, ...]
    """What torch computed during the call, the most first; tensors that were made, viewed or copied left out."""
    patched: tuple[str, ...]
    """Functions of this process that the candidate replaced."""
    seconds: float


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag="raised"):
    """The candidate raised; the process ends after it."""

    stage: Literal["import", "construct", "parameters", "call", "read"]
    check: Literal["raised", "no ModelNew", "parameters", "fault", "unsupported", "time", "out of memory", "disk full"]
    error: str
    """Exception type and message."""
    where: str
    """`model_new.py:12 in forward: y = launcher(x)`; empty when no line of the candidate is in the traceback."""
    fault: str
    """What the emulated device found, empty when nothing."""


CandidateReply = Confined | CandidateLoaded | Done | Called | Raised


# --- compare ---


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`request.json` of a compare worker."""

    device: str


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """Copy a candidate's result into the process, before anything is expected of it."""

    trial: int
    tensors: tuple[TensorFile, ...]


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How far one output may be off: |got - expected| <= atol + rtol |expected|."""

    rtol: float
    atol: float


class Compare(msgspec.Struct, frozen=True, kw_only=True, tag="compare"):
    """Compare the taken result with what is expected; shapes and dtypes agree already."""

    trial: int
    expected: tuple[TensorFile, ...]
    """One an output; dtype is that of the file."""
    alternatives: tuple[TensorFile | None, ...]
    bounds: tuple[Bound, ...]


CompareCommand = Take | Compare | Quit


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag="taken"):
    """The candidate's bytes are in this process."""

    trial: int
    unreadable: str
    """What is wrong with a file (missing, wrong size), empty when nothing is."""
    same_as: tuple[int | None, ...]
    """Per output, an earlier trial whose output had the very same bytes."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One output tensor against what is expected."""

    total: int
    bad: int
    first_bad: tuple[int, ...]
    """Index in row-major order; empty when nothing is bad, or for a scalar."""
    expected: str
    """Value there, as text; empty when nothing is bad."""
    got: str
    low: tuple[int, ...]
    """Smallest index of a bad element in each dimension."""
    high: tuple[int, ...]
    """Largest one."""
    max_abs_error: float | None
    """Over pairs that are both finite; None when there is none."""
    relative_rms_error: float | None
    """||got - expected|| / ||expected|| over the same pairs; 0 when both are zero, None when only ||expected|| is."""
    worst_ratio: float | None
    """max |got - expected| / (atol + rtol |expected|) over the same pairs; None when the bound is 0 somewhere
    and the error is not."""
    wrong_non_finite: int
    """Bad elements where got is NaN or infinite and expected is not, or the other way round."""
    poisoned: int
    """Bad elements that hold the poison byte pattern in every byte."""
    zeros: int
    """Bad elements that are exactly zero."""


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """Facts of one trial."""

    trial: int
    facts: tuple[Facts, ...]


class CompareFailed(msgspec.Struct, frozen=True, kw_only=True, tag="compare-failed"):
    """Ours or the machine's fault."""

    message: str


CompareReply = Taken | Compared | CompareFailed
