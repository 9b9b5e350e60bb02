"""Reductions over everything, with what comes before and after them, in two kernels."""
