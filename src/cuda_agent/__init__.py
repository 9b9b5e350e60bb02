"""CUDA Agent writes CUDA kernels for PyTorch modules and judges them: compiled, correct, fast."""

__version__ = "0.1.0"
