"""Real failures of inductor as parts of a model, and real models with a place in the middle for one of them.

A failure is a function of a hidden state that gives one back: what a user's layer would do. ``nodes`` says how many
calls the failure needs by itself. Kinds and numbers are those of ``tests/cases``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@torch.library.custom_op("real_failures::scale", mutates_args=())
def scale(x: Tensor) -> Tensor:
    """Its fake kernel promises contiguous strides."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) * 2


@scale.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("real_failures::narrow", mutates_args=())
def narrow(x: Tensor) -> Tensor:
    """Its fake kernel promises int64: compiled code reads eight times too far."""
    return x.to(torch.int8)


@narrow.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.int64)


def image_of(h: Tensor, channels: int, side: int) -> Tensor:
    """A small image made of the first values of ``h``."""
    return h.flatten()[: channels * side * side].reshape(1, channels, side, side)


def cumsum_0dim(h: Tensor) -> Tensor:
    return h * torch.rsqrt(1 + torch.full((), 3.0).cumsum(0))


def bool_relational(h: Tensor) -> Tensor:
    a = torch.any(torch.full((4, 4, 4, 4), 0.9), 3)
    b = torch.where(a, a, a)
    return h * torch.isclose(b, a).all()


def pool_kernel_zero(h: Tensor) -> Tensor:
    pooled = F.adaptive_max_pool2d(image_of(h, 2, 4), (58, 83))
    return h + F.fractional_max_pool2d(pooled, 0, output_size=(39, 24)).mean()


def fractional_pool(h: Tensor) -> Tensor:
    return h + F.fractional_max_pool2d(image_of(h, 2, 8), -1, output_size=(4, 4)).mean()


def fake_stride(h: Tensor) -> Tensor:
    return scale(h) + 1


def cumsum_dtype(h: Tensor) -> Tensor:
    ones = torch.ones((2, 4, 4), dtype=torch.bool)
    return h * (ones.cumsum(1, dtype=torch.bfloat16) / 3).sum()


def outer_fusion_mask(h: Tensor) -> Tensor:
    """``KeyError: 'buf1'`` of the scheduler's outer-loop fusion: it looks for a read of the buffer by the name it has after the write."""
    first = h[0].clone()
    mask = torch.full(first.shape, -1e4)
    mask[torch.arange(first.shape[0])] = 0.0
    return h * torch.softmax(first + mask, -1).sum(-1)[None, :, None]


def custom_op_dtype(h: Tensor) -> Tensor:
    return h + (narrow(h.flatten()[:1].expand(1 << 26)) * 2).sum()


@dataclass(frozen=True)
class Bug:
    """A real failure."""

    layer: Callable[[Tensor], Tensor]
    kind: str
    nodes: int
    after: str = "dynamo"
    """``TORCHDYNAMO_REPRO_AFTER`` of torch's flow, and its level."""
    level: str = "2"


BUGS: dict[str, Bug] = {
    "193265_cumsum_0dim": Bug(cumsum_0dim, "compile", 2),
    "188231_bool_relational": Bug(bool_relational, "compile", 4),
    "188218_pool_kernel_zero": Bug(pool_kernel_zero, "compile", 1),
    "190272_fractional_pool": Bug(fractional_pool, "runtime", 1),
    "143579_fake_stride": Bug(fake_stride, "runtime", 1),
    # in torch 2.13 its gradient alone is wrong, which needs the sum and the product too
    "189518_cumsum_dtype": Bug(cumsum_dtype, "accuracy", 4, level="4"),
    "own_outer_fusion_mask": Bug(outer_fusion_mask, "compile", 5),
    "own_custom_op_dtype": Bug(custom_op_dtype, "crash", 2),
}


class WithBug(nn.Module):
    """A layer of a model, and the failure after it."""

    def __init__(self, inner: nn.Module, bug: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.bug = inner, bug

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = self.inner(*args, **kwargs)
        if isinstance(given, tuple):
            return (self.bug(given[0]), *given[1:])
        return self.bug(given)


Made = tuple[nn.Module, tuple[Any, ...]]
IDS = torch.arange(40).reshape(2, 20) % 90


def ids() -> tuple[Tensor]:
    return (IDS,)


def pixels() -> tuple[Tensor]:
    return (torch.randn(2, 3, 32, 32),)


def transformer(
    name: str, inputs: Callable[[], tuple[Tensor]], config: Mapping[str, Any], **more: Any
) -> Made:
    import transformers

    kind = getattr(transformers, name)
    return kind(kind.config_class(**{**config, **more})), inputs()


def resnet() -> Made:
    import timm

    return timm.create_model("resnet50", num_classes=10), (torch.randn(2, 3, 64, 64),)


def unet() -> Made:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    return model, (torch.randn(1, 3, 16, 16), torch.tensor([7]))


@dataclass(frozen=True)
class Model:
    """How a model is made, and the path of the layer after which the failure stands."""

    make: Callable[[], Made]
    place: str
    training: bool = False


VIT = {
    "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8,
}  # fmt: skip
GPT2 = {"n_positions": 32, "n_embd": 32, "n_layer": 6, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 6, "num_heads": 4}
gpt2 = partial(transformer, "GPT2LMHeadModel", ids, GPT2, vocab_size=100, use_cache=False)
t5 = partial(transformer, "T5EncoderModel", ids, T5, vocab_size=100, use_cache=False)
vit = partial(transformer, "ViTModel", pixels, VIT)

MODELS: dict[str, Model] = {
    "gpt2": Model(gpt2, "transformer.h.3.mlp"),
    "gpt2-training": Model(gpt2, "transformer.h.3.mlp", training=True),
    "t5": Model(t5, "encoder.block.3.layer.1"),
    "vit": Model(vit, "layers.3.mlp"),
    "timm-resnet50": Model(resnet, "layer3.2"),
    "diffusers-unet": Model(unet, "mid_block"),
}


def make(bug: str, name: str) -> Made:
    """The model with the failure in it, and its inputs."""
    torch.manual_seed(0)
    known = MODELS[name]
    model, inputs = known.make()
    owner, _, last = known.place.rpartition(".")
    parent = model.get_submodule(owner)
    setattr(parent, last, WithBug(getattr(parent, last), BUGS[bug].layer))
    return model.train(known.training), inputs
