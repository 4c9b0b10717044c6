"""``InputSpec``: what one input of a graph is, and how its values are made."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minidbg.graphs.fills import Fill


class Exactness(enum.StrEnum):
    """How faithful the values of a script's inputs are. Seeded first: weights of a private model stay where they are."""

    SEEDED = "seeded"
    """Random values of the same distribution and range."""
    SMALL = "small"
    """Integers, booleans and small tensors as they were, the rest seeded."""
    EXACT = "exact"
    """All values as they were."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input.

    A tensor is ``view`` (text such as ``.t()``) of a contiguous ``base`` ``[*base_shape]`` of ``base_dtype`` filled by ``fill``.
    Usually ``base`` is the input's own name; inputs that share a storage name the same base, which is no input then.
    """

    name: str
    fill: Fill
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    storage_offset: int = 0
    dtype: torch.dtype | None = None
    """None: no tensor; ``fill`` is the text of a plain value."""
    device: str = "cpu"
    requires_grad: bool = False
    is_leaf: bool = True
    is_parameter: bool = False
    is_inference: bool = False
    is_conj: bool = False
    is_neg: bool = False
    layout: torch.layout = torch.strided
    base: str = ""
    base_shape: tuple[int, ...] = ()
    base_dtype: torch.dtype | None = None
    view: str = ""
    places: tuple[tuple[str, str], ...] = ()
    """Where the base holds NaN or infinities: index and value, as text."""
    same_as: str = ""
    """The earlier input that is this very object."""
    dynamic_dims: tuple[int, ...] = ()
    stored: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """What the text reads from the .safetensors file, by key: uint8 ``[n]`` on the cpu."""

    @property
    def is_shared(self) -> bool:
        """Whether the base is a variable of its own, used by several inputs."""
        return self.dtype is not None and self.base != self.name
