"""Large tensors go from process to process in device memory, and a reader believes no claim about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from cuda_agent.records import codec
from cuda_agent.records.verification import TensorFile
from cuda_agent.worker import values
from cuda_agent.worker.device_blocks import BLOCKS, FILE_BYTES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

READER = """
import sys, torch
from pathlib import Path
from cuda_agent.records import codec
from cuda_agent.records.verification import TensorFile
from cuda_agent.worker import values
file = codec.read(Path(sys.argv[1]), TensorFile)
try:
    tensor = values.read_tensor(file, "cuda:0")
    print(float(tensor.double().sum()), values.holds(tensor, file), values.holds(tensor + 1, file))
except ValueError as error:
    print("refused:", error)
"""


def written(tensor: torch.Tensor, path: Path) -> TensorFile:
    path.parent.mkdir(exist_ok=True)
    file = values.write_tensor(tensor, path, shared=True)
    assert file.on_device
    assert path.stat().st_size == FILE_BYTES
    return file


def read_elsewhere(file: TensorFile, folder: Path) -> str:
    codec.write(folder / "file.json", file)
    command = [sys.executable, "-c", READER, str(folder / "file.json")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_another_process_reads_and_compares_the_same_bytes(tmp_path: Path) -> None:
    tensor = torch.randn(3, 1 << 20, device="cuda:0")
    file = written(tensor, tmp_path / "a" / "0.bin")
    assert read_elsewhere(file, tmp_path) == f"{float(tensor.double().sum())} True False"


def test_a_file_that_promises_more_than_its_block_has_is_refused(tmp_path: Path) -> None:
    file = written(torch.zeros(2 << 20, device="cuda:0"), tmp_path / "a" / "0.bin")
    path = Path(file.file)
    text = path.read_bytes()
    path.write_bytes(text[:-8] + (64 << 20).to_bytes(8, "little"))
    claimed = msgspec.structs.replace(file, shape=(16 << 20,))
    assert read_elsewhere(claimed, tmp_path).startswith("refused: the announced device memory has ")


def test_a_file_that_announces_no_memory_is_refused(tmp_path: Path) -> None:
    file = written(torch.zeros(2 << 20, device="cuda:0"), tmp_path / "a" / "0.bin")
    text = Path(file.file).read_bytes()
    Path(file.file).write_bytes(text[:8] + bytes(64) + text[72:])
    assert read_elsewhere(file, tmp_path).startswith("refused: the announced device memory can't be opened")


def test_memory_is_reused_after_its_file_is_deleted_but_never_for_another_folder(tmp_path: Path) -> None:
    def place(file: TensorFile) -> int:
        return BLOCKS._leased[Path(file.file)].pointer

    tensor = torch.zeros(2 << 20, device="cuda:0")
    first = written(tensor, tmp_path / "inputs" / "0.bin")
    pointer = place(first)
    Path(first.file).unlink()
    assert place(written(tensor, tmp_path / "expected" / "0.bin")) != pointer
    assert place(written(tensor, tmp_path / "inputs" / "1.bin")) == pointer


def test_the_process_that_wrote_reads_its_own_block(tmp_path: Path) -> None:
    tensor = torch.randn(2 << 20, device="cuda:0")
    file = written(tensor, tmp_path / "a" / "0.bin")
    assert values.holds(tensor, file)
    tensor[7] += 1
    assert not values.holds(tensor, file)
