"""What the verify gate and its three workers say to each other."""
