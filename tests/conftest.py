"""Tests that need a GPU are skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest

from cuda_agent.gates.devices import cuda_devices, installed_torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without a CUDA device that torch can use."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or (cuda_devices() and installed_torch().cuda):
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device; run scripts/gpu/setup.sh, then pytest -m gpu"))
