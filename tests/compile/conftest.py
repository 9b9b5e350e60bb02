"""The compile gate with this machine's compilers and a cache of the test session's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_agent import emulator
from cuda_agent.emulator.runtime import Runtime
from cuda_agent.gates.compile import CompileGate
from cuda_agent.gates.toolkit import Toolkit, discover


@pytest.fixture(scope="session")
def toolkit() -> Toolkit:
    return discover()


@pytest.fixture(scope="session")
def gate(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> CompileGate:
    return CompileGate(
        toolkit=toolkit,
        cache_folder=tmp_path_factory.mktemp("cache"),
        emulator_library=emulator.core_library,
        emulator_headers=emulator.host_headers(),
    )


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    runtime = emulator.attach()
    yield runtime
    runtime.reset()
