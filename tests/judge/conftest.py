"""One court for all tests that judge whole candidates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.judge.judging import Court


@pytest.fixture(scope="session")
def court() -> Iterator[Court]:
    with ExitStack() as stack:
        yield Court(stack)
