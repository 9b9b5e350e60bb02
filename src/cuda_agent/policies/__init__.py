"""Who decides what to try next: the composer, which needs no model, and a scripted policy for tests and replays."""
