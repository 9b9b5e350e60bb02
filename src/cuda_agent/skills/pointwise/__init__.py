"""Chains of elementwise operations in one kernel."""
