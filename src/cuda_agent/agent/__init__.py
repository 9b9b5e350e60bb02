"""The agent loop: a policy calls tools in an environment, within budgets, until it stops."""
