"""Kernel knowledge: guidance, a tested parametric kernel and a tuning space for each family of operations.

One source serves two readers: a language model reads the `SKILL.md` of a skill, the composer policy calls its
generator.
"""
