"""Other values for a problem's floating inputs, at the same shapes, that keep the structure the problem relies on.

Which inputs may be changed how is read off their values. Left alone: integers and booleans; floats that are all
whole numbers (labels, masks, one-hot rows); rows that sum to one or have length one (probabilities, normalised
vectors). Only multiplied by one factor: tensors with many exact zeros (triangular, sparse), symmetric matrices, and
rows in ascending order (not by a negative factor either). A problem whose reference then raises or leaves the
finite numbers is not tried that way (logarithms, probabilities): the gate drops the trial.
"""

from __future__ import annotations

from typing import Literal

import torch

from cuda_agent.records.verification import Distribution

Freedom = Literal["none", "scale", "any"]

MANY_ZEROS = 0.05
"""Share of exact zeros from which on they count as structure; a random float32 is 0 about once in 2^24."""
SPIKE = 8.0
"""Height of a late spike in units of the largest magnitude; e^8 stays far inside fp16's range of values."""


def change(tensors: list[torch.Tensor], distribution: Distribution, seed: int) -> bool:
    """Change `tensors` in place; False when none may be changed so, and nothing was.

    Tensors of one freedom are changed by one rule; random signs and row choices come from `seed`.
    """
    if distribution == "as given":
        return True
    generator = torch.Generator().manual_seed(seed)
    changed = False
    for tensor in tensors:
        allowed = freedom(tensor)
        if allowed == "none" or (allowed == "scale" and not distribution.startswith("times")):
            continue
        if tensor.is_contiguous():
            _change(tensor, distribution, generator)
        else:
            copy = tensor.contiguous()
            _change(copy, distribution, generator)
            tensor.copy_(copy)
        changed = True
    return changed


def freedom(tensor: torch.Tensor) -> Freedom:
    """Return what may be done to a tensor without breaking what its values look like."""
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return "none"
    # A slice decides for a big tensor; structure shows in any of its leading rows.
    sample = tensor.detach()
    while sample.dim() > 2:
        sample = sample[0]
    whole = sample if sample.numel() <= 1 << 24 else sample[: max(1, (1 << 24) // sample.shape[-1])]
    values = whole.double()
    if not bool(torch.isfinite(values).all()) or bool((values == values.round()).all()):
        return "none"
    rows = values.reshape(-1, values.shape[-1])
    if rows.shape[1] > 1:
        sums, lengths = rows.sum(1), rows.norm(dim=1)
        if bool(((sums - 1).abs() < 1e-3).all()) or bool(((lengths - 1).abs() < 1e-3).all()):
            return "none"
    if float((values == 0).double().mean()) > MANY_ZEROS:
        return "scale"
    if values.dim() == 2 and values.shape[0] == values.shape[1] > 1 and torch.equal(values, values.T):
        return "scale"
    if rows.shape[1] > 2 and bool((rows.diff(dim=1) >= 0).all()):
        return "scale"
    return "any"


def _change(tensor: torch.Tensor, distribution: Distribution, generator: torch.Generator) -> None:
    if distribution == "times 10":
        tensor.mul_(10)
    elif distribution == "times 0.01":
        tensor.mul_(0.01)
    elif distribution == "zeros":
        tensor.zero_()
    elif distribution == "mixed signs":
        seed = int(torch.randint(1 << 62, (), generator=generator))
        local = torch.Generator(tensor.device).manual_seed(seed)
        for part in _parts(tensor):
            # Drawn where the tensor lies: a quarter of a billion signs take the host a second.
            signs = torch.randint(0, 2, part.shape, generator=local, dtype=torch.int8, device=part.device)
            part.mul_(signs.to(part.dtype).mul_(2).sub_(1))
    elif distribution == "late spike":
        # The last element of every third row, and of the last: an online reduction must rescale, a tail must count.
        # Heights differ, so that an index of a maximum along another dimension is no matter of taste.
        rows = _rows(tensor)
        height = SPIKE * float(rows.abs().max())
        chosen = torch.arange(0, rows.shape[0], 3)
        if chosen[-1] != rows.shape[0] - 1:
            chosen = torch.cat([chosen, torch.tensor([rows.shape[0] - 1])])
        steps = 1 - torch.randperm(chosen.numel(), generator=generator) / (2.0 * chosen.numel())
        rows[chosen.to(rows.device), -1] = (height * steps).to(device=rows.device, dtype=rows.dtype)
    elif distribution == "constant rows":
        # One row in four only, so that the size of a normalised output is set by the others.
        rows = _rows(tensor)
        rows[::4] = rows[::4, :1].clone()


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix of its last dimension, sharing memory (it is contiguous)."""
    return tensor.view(1, -1) if tensor.dim() < 2 else tensor.flatten(0, -2)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Pieces along the first dimension of at most about 16 M elements."""
    if tensor.dim() == 0:
        return [tensor]
    rows = max(1, (1 << 24) * tensor.shape[0] // max(1, tensor.numel()))
    return list(torch.split(tensor, rows))
