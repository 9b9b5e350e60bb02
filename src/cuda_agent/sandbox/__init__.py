"""Where untrusted code runs: one contract, a local implementation, and a scripted one for tests.

Nothing in here loads torch; a job's process does.
"""
