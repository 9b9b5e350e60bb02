"""What runs on the untrusted side, as processes of its own: it measures and reports, and never decides."""
