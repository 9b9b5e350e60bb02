"""Reductions over rows, with what comes before, between and after them, in one kernel."""
