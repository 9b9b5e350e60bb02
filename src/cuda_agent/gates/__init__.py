"""The gates: source, compile, verify and profile, each separate, each with its own stored report.

Nothing here loads a candidate or torch; workers do, and report facts from which a gate decides.
"""
