"""Looking at a problem before anything is judged: does it load, run, and what are its shapes.

The problem file is the user's Python and may raise or hang, so a worker runs it.
"""

from __future__ import annotations
