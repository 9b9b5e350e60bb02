"""What the profile gate and a stopwatch process say to each other, and what the baseline cache holds.

One stopwatch process holds one contender. The gate sends one command a line and waits for one reply a line;
everything the process that holds the candidate replies is a claim.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cuda_agent.records.candidate import Candidate
from cuda_agent.records.timing import Contender, Samples

Tf32 = Literal["off", "on", "as torch ships"]


class StopwatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a stopwatch process is started with (`request.json`)."""

    contender: Contender
    problem: str
    """The problem's Python text."""
    case: str
    device: str
    """`cuda:0`."""
    tf32: Tf32
    """Whether matrix products and convolutions of torch may use TF32."""
    seed: int
    """Of the weights; the same for every contender."""
    memory_share: float
    """Share of the free device memory that input sets may take."""
    warm_up_s: float
    """Shortest warm-up, so that clocks have risen."""
    warm_up_limit_s: float
    """Longest warm-up; a contender that is not steady by then is measured as it is."""
    candidate: Candidate | None = None
    """None for a baseline."""
    library: str = ""
    """Path of the candidate's built `cuda_extension`; empty for a baseline."""


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Make input sets, build and warm up the contender."""

    seeds: tuple[int, ...]
    """One an input set; at least two."""
    exact: bool
    """False: make as many sets, from the front and at least two, as fit into the share of memory."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """What one call gets: the tensors of set `slot`, holding what `seed` draws."""

    slot: int
    seed: int


class Round(msgspec.Struct, frozen=True, kw_only=True, tag="round"):
    """Time calls: first some by device events, then some by the host's clock."""

    device: tuple[Input, ...]
    wall: tuple[Input, ...]
    keep: int | None = None
    """Index into `device` of the call whose outputs are kept, in `kept-<index>.bin` below the job's folder."""
    keep_seed: int = 0
    """Chooses which elements of a large output are kept."""


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Compute the outputs for one input and compare them with kept ones that lie in the job's folder."""

    input: Input
    kept: tuple[KeptOutput, ...]
    keep_seed: int
    tolerance: float
    """An element is bad when |got - expected| > tolerance x (|expected| + rms(expected))."""


class Quit(msgspec.Struct, frozen=True, kw_only=True, tag="quit"):
    """Leave."""


Command = Prepare | Round | Check | Quit


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """The contender is ready."""

    setup_seconds: float
    """Building, compiling and warming up."""
    steady: bool
    """Whether call times had settled when the warm-up ended."""
    call_us: float
    """Wall time of a call at the end of the warm-up; microseconds."""
    cover_us: float
    """How long the device waits before a call timed by events; microseconds."""
    sets: int
    """Input sets that were made."""
    input_seconds: float
    """Wall time of drawing one input set."""
    gpu_uuid: str
    """`GPU-...`, empty where torch does not tell."""
    l2_bytes: int
    fill_bytes_per_us: float
    """Bandwidth of writing the scratch buffer that evicts L2, from events."""


class KeptOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One output tensor of a kept call, of which elements picked by the command's `keep_seed` lie in a file."""

    dtype: str
    """torch's name without the prefix."""
    shape: tuple[int, ...]


class RoundTimes(msgspec.Struct, frozen=True, kw_only=True, tag="round-times"):
    """Times of one round; microseconds."""

    device_us: tuple[float, ...]
    wall_us: tuple[float, ...]
    leftover_us: tuple[float, ...]
    """Per call timed by events: how long the device stayed busy after the end event. Work that the contender
    left on another stream shows here."""
    exposed: int
    """Calls timed by events that the device began before the host had enqueued them whole."""
    changed: tuple[str, ...]
    """What the contender changed in its process and should not have: TF32 switches, the current stream, clocks."""
    kept: tuple[KeptOutput, ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One kept output against the expected one."""

    compared: int
    bad: int
    first_bad: int | None
    """Flat index into the whole output; None when nothing is bad."""
    expected: str
    """Value at that index as text, empty when nothing is bad."""
    got: str
    max_abs_error: float | None
    """None when no pair was finite."""


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """Result of a check."""

    structure: str
    """What is wrong with count, shape or dtype of the outputs; empty when nothing is."""
    differences: tuple[Difference, ...]
    """One an output; empty when the structure is wrong."""


class Fell(msgspec.Struct, frozen=True, kw_only=True, tag="fell"):
    """The step asked for raised; the process ends after it."""

    stage: Literal["problem", "inputs", "confinement", "build", "call", "check"]
    """`problem` and `inputs` come before any code of the candidate is loaded."""
    out_of_memory: bool
    error: str
    """Exception type and message, with the last lines of the traceback."""


Reply = Prepared | RoundTimes | Checked | Fell


class BaselineKey(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that could change how fast the baselines are."""

    problem: str
    case: str
    protocol: str
    precision: str
    gpu: str
    driver: str
    cpu: str
    """Model of the processor that launches."""
    torch: str
    triton: str
    python: str
    stopwatch: str
    """Hash of the source of the measuring process."""


class BaselineRun(msgspec.Struct, frozen=True, kw_only=True):
    """Baselines measured side by side in one run, without a candidate on the device."""

    schema_version: int
    key: BaselineKey
    created: str
    """UTC, ISO 8601."""
    samples: tuple[Samples, ...]
    """Of eager and of every baseline that could be measured, over the same rounds."""
    setup_seconds: dict[Contender, float]
    failures: dict[str, str]
    """Baselines that could not be measured, with the reason."""
