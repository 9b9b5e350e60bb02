"""The one place that knows where caches live."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder.

    It is `$CUDA_AGENT_CACHE`, else `$XDG_CACHE_HOME/cuda-agent`, else `~/.cache/cuda-agent`. The folder may
    not exist yet; whoever writes into it makes it.
    """
    if chosen := os.environ.get("CUDA_AGENT_CACHE"):
        return Path(chosen).expanduser().resolve()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().resolve() / "cuda-agent"
    return Path.home() / ".cache" / "cuda-agent"
