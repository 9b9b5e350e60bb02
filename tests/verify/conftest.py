"""One warm sandbox for all verify tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_agent.sandbox.local import LocalSandbox
from tests.verify.judging import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    sandbox = LocalSandbox(keep_warm=False)
    yield Bench(sandbox, tmp_path_factory.mktemp("verify"))
    sandbox.close()
