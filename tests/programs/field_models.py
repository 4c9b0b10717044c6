"""The models of the field trial (no program of its own): tiny configurations with random weights of what people run. Nothing is downloaded.

Each entry makes a model and a function ``inputs(batch)`` that gives its keyword arguments; sizes other than the batch are fixed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]
Made = tuple[torch.nn.Module, Inputs]
VOCABULARY = 64
LENGTH = 9
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the trial."""

    library: str
    make: Callable[[], Made]


def tokens(batch: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def text(batch: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch)}


def labelled(batch: int) -> dict[str, Any]:
    ids = tokens(batch)
    return {"input_ids": ids, "labels": ids}


def translation(batch: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch), "decoder_input_ids": tokens(batch, 7)}


def masked(batch: int) -> dict[str, Any]:
    """Padded text, as a tokenizer gives it."""
    mask = torch.ones(batch, LENGTH, dtype=torch.int64)
    mask[1:, -3:] = 0
    return {"input_ids": tokens(batch), "attention_mask": mask}


def pixels(batch: int, size: int = 32, channels: int = 3, name: str = "pixel_values") -> dict[str, Any]:
    return {name: torch.randn(batch, channels, size, size)}


def sound(batch: int, length: int = 800) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, length)}


def spectrum(batch: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 8, 40), "decoder_input_ids": tokens(batch, 5)}


def text_and_pixels(batch: int) -> dict[str, Any]:
    return {**masked(batch), **pixels(batch)}


def of_transformers(name: str, inputs: Inputs, config: dict[str, Any]) -> Made:
    import transformers

    kind = getattr(transformers, name)
    return kind(kind.config_class(**config)), inputs


def of_timm(name: str, size: int, config: dict[str, Any]) -> Made:
    import timm

    if name[0].isupper():  # a class: the registered variants fix the sizes
        made = getattr(timm.models, name)(num_classes=10, **config)
    else:
        made = timm.create_model(name, num_classes=10, **config)
    return made, partial(pixels, size=size, name="x")


def of_diffusers(name: str, inputs: Inputs, config: dict[str, Any]) -> Made:
    import diffusers

    return getattr(diffusers, name)(**config), inputs


def of_torch(make: Callable[[], torch.nn.Module], inputs: Inputs) -> Made:
    return make(), inputs


ENTRIES: dict[str, Entry] = {}


def torch_model(name: str, make: Callable[[], torch.nn.Module], inputs: Inputs) -> None:
    ENTRIES[f"torch/{name}"] = Entry("torch", partial(of_torch, make, inputs))


def transformer(name: str, inputs: Inputs = text, base: dict[str, Any] = TEXT, **config: Any) -> None:
    ENTRIES[name] = Entry("transformers", partial(of_transformers, name, inputs, {**base, **config}))


def timm_model(name: str, size: int = 32, **config: Any) -> None:
    ENTRIES[f"timm/{name}"] = Entry("timm", partial(of_timm, name, size, config))


def diffuser(name: str, inputs: Inputs, **config: Any) -> None:
    ENTRIES[f"diffusers/{name}"] = Entry("diffusers", partial(of_diffusers, name, inputs, config))


def library_is_here(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# ---- transformers: decoders

GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 48}
transformer("GPT2LMHeadModel", labelled, {**TEXT, **GPT})
transformer("LlamaForCausalLM", labelled)
transformer("MistralForCausalLM", labelled, sliding_window=4)
transformer("MixtralForCausalLM", labelled, num_local_experts=2, num_experts_per_tok=1)
transformer("Qwen2ForCausalLM", labelled)
transformer("Qwen3ForCausalLM", labelled, head_dim=8)
transformer("Gemma2ForCausalLM", labelled, head_dim=8, query_pre_attn_scalar=8)
transformer("Gemma3ForCausalLM", labelled, head_dim=8, query_pre_attn_scalar=8, sliding_window=4)
transformer("PhiForCausalLM", labelled)
transformer("Phi3ForCausalLM", labelled)
transformer("OPTForCausalLM", labelled, ffn_dim=48, word_embed_proj_dim=32)
transformer("BloomForCausalLM", labelled, n_layer=2, n_head=4)
transformer(
    "GPTNeoForCausalLM", labelled, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
)
transformer("GPTNeoXForCausalLM", labelled)
transformer("GPTJForCausalLM", labelled, {**TEXT, **GPT}, rotary_dim=4)
transformer("FalconForCausalLM", labelled)
transformer("StableLmForCausalLM", labelled)
transformer("OlmoForCausalLM", labelled)
transformer("CohereForCausalLM", labelled)
transformer("MambaForCausalLM", labelled, state_size=4, expand=2, time_step_rank=2)
transformer("XGLMForCausalLM", labelled, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48)
# ---- encoders
transformer("BertForSequenceClassification", masked)
transformer("BertForMaskedLM", labelled)
transformer("RobertaModel", masked)
transformer("DistilBertModel", masked, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
transformer("AlbertModel", masked, embedding_size=16)
transformer("ElectraModel", masked, embedding_size=16)
transformer(
    "DebertaV2Model", masked, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
)
transformer("MPNetModel", masked)
transformer("FNetModel", text, type_vocab_size=2)
XLNET = {key: value for key, value in TEXT.items() if key != "max_position_embeddings"}
transformer("XLNetModel", masked, XLNET, d_model=32, n_layer=2, n_head=4, d_inner=48)
transformer("LongformerModel", masked, attention_window=4)
transformer("ModernBertModel", masked, local_attention=4, global_attn_every_n_layers=2)
# ---- encoders with decoders
SEQ = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
BOTH = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
BOTH |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32, "decoder_start_token_id": 0}
transformer("T5ForConditionalGeneration", translation, {**TEXT, **SEQ})
transformer("BartForConditionalGeneration", translation, {**TEXT, **BOTH})
transformer("MarianMTModel", translation, {**TEXT, **BOTH})
transformer("PegasusModel", translation, {**TEXT, **BOTH})
transformer(
    "WhisperForConditionalGeneration",
    spectrum,
    {**TEXT, **BOTH},
    num_mel_bins=8,
    max_source_positions=20,
    max_target_positions=16,
)
# ---- images, sound, both
transformer("ViTForImageClassification", pixels, IMAGE)
transformer("DeiTModel", pixels, IMAGE)
transformer("BeitModel", pixels, IMAGE)
transformer("Dinov2Model", pixels, IMAGE)
transformer(
    "SwinModel",
    pixels,
    {},
    image_size=32,
    patch_size=4,
    embed_dim=16,
    depths=[1, 1],
    num_heads=[2, 2],
    window_size=2,
)
transformer("ConvNextModel", pixels, {}, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32])
transformer("ResNetForImageClassification", pixels, {}, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
transformer(
    "SegformerForSemanticSegmentation",
    pixels,
    {},
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    decoder_hidden_size=16,
)
transformer(
    "MobileViTModel",
    partial(pixels, size=64),
    {},
    image_size=64,
    hidden_sizes=[16, 20, 24],
    neck_hidden_sizes=[4, 8, 8, 16, 16, 16, 32],
)
AUDIO = {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 4], "num_feat_extract_layers": 2}
AUDIO |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
transformer("Wav2Vec2Model", sound, {**TEXT, **AUDIO})
transformer("HubertModel", sound, {**TEXT, **AUDIO})
TWO = {"text_config": {**TEXT, "projection_dim": 16}, "vision_config": IMAGE, "projection_dim": 16}
transformer("CLIPModel", text_and_pixels, TWO)
transformer("SiglipModel", text_and_pixels, TWO)
transformer("ViltModel", text_and_pixels, {**TEXT, **IMAGE}, max_image_length=-1)
# ---- timm
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
timm_model("resnet18", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16))
timm_model("resnet50", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16))
timm_model("seresnext50_32x4d", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), cardinality=4, base_width=16)
timm_model("vit_tiny_patch16_224", **VIT)
timm_model("deit3_small_patch16_224", **VIT, drop_path_rate=0.1)
timm_model("beit_base_patch16_224", **VIT)
timm_model("eva02_tiny_patch14_224", **VIT)
timm_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), drop_path_rate=0.1)
timm_model(
    "swin_tiny_patch4_window7_224", img_size=32, embed_dim=16, depths=(1, 1), num_heads=(2, 2), window_size=4
)
timm_model("MlpMixer", img_size=32, patch_size=8, num_blocks=2, embed_dim=32)
timm_model("mobilenetv3_small_050")
timm_model("regnetx_002")
timm_model("densenet121", growth_rate=4, block_config=(1, 1, 1))
timm_model("repvgg_a0")
timm_model("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=4)
timm_model("FocalNet", depths=(1, 1), embed_dim=16)
timm_model("MetaFormer", depths=(1, 1), dims=(8, 16))
timm_model("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(8, 8, 16, 16), num_heads=(1, 1, 2, 2))
timm_model("edgenext_xx_small", depths=(1, 1, 2, 1), dims=(8, 16, 16, 32))
timm_model("ghostnet_050")
timm_model("res2net50_26w_4s", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16))
timm_model("Xcit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=4)


# ---- diffusers
def denoised(batch: int, channels: int = 4, size: int = 16, width: int = 16) -> dict[str, Any]:
    return {
        "sample": torch.randn(batch, channels, size, size),
        "timestep": torch.randint(0, 1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 5, width),
        "return_dict": False,
    }


def plain_denoised(batch: int) -> dict[str, Any]:
    return {**{name: value for name, value in denoised(batch, 3).items() if name != "encoder_hidden_states"}}


def picture(batch: int) -> dict[str, Any]:
    return {**pixels(batch, 16, name="sample"), "return_dict": False}


def of_class(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 4, 8, 8),
        "timestep": torch.randint(0, 1000, (batch,)),
        "class_labels": torch.randint(0, 10, (batch,)),
        "return_dict": False,
    }


def joint(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 4, 8, 8),
        "encoder_hidden_states": torch.randn(batch, 5, 16),
        "pooled_projections": torch.randn(batch, 16),
        "timestep": torch.randint(0, 1000, (batch,)),
        "return_dict": False,
    }


def packed(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 16, 4),
        "encoder_hidden_states": torch.randn(batch, 5, 16),
        "pooled_projections": torch.randn(batch, 16),
        "timestep": torch.rand(batch),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(5, 3),
        "return_dict": False,
    }


BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
diffuser(
    "UNet2DModel",
    plain_denoised,
    **BLOCKS,
    sample_size=16,
    attention_head_dim=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
diffuser(
    "UNet2DConditionModel",
    denoised,
    **BLOCKS,
    sample_size=16,
    cross_attention_dim=16,
    attention_head_dim=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)
AUTOENCODER = {
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
}
diffuser("AutoencoderKL", picture, **BLOCKS, **AUTOENCODER, latent_channels=4)
diffuser("VQModel", picture, **BLOCKS, **AUTOENCODER, latent_channels=3, num_vq_embeddings=16)
diffuser(
    "AutoencoderTiny",
    picture,
    encoder_block_out_channels=(8, 8),
    decoder_block_out_channels=(8, 8),
    num_encoder_blocks=(1, 1),
    num_decoder_blocks=(1, 1),
)
diffuser(
    "DiTTransformer2DModel",
    of_class,
    sample_size=8,
    num_layers=2,
    num_attention_heads=2,
    attention_head_dim=8,
    in_channels=4,
    out_channels=4,
    patch_size=2,
    num_embeds_ada_norm=10,
)
diffuser(
    "SD3Transformer2DModel",
    joint,
    sample_size=8,
    patch_size=2,
    in_channels=4,
    out_channels=4,
    num_layers=1,
    attention_head_dim=8,
    num_attention_heads=2,
    joint_attention_dim=16,
    caption_projection_dim=16,
    pooled_projection_dim=16,
    pos_embed_max_size=8,
)
diffuser(
    "FluxTransformer2DModel",
    packed,
    patch_size=1,
    in_channels=4,
    num_layers=1,
    num_single_layers=1,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=16,
    pooled_projection_dim=16,
    axes_dims_rope=(4, 4, 8),
)


# ---- torch alone: for a machine that has nothing else
def sequence(batch: int, name: str = "src") -> dict[str, Any]:
    return {name: torch.randn(batch, LENGTH, 32)}


def convolutions() -> torch.nn.Module:
    nn = torch.nn
    block = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout2d(0.1)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), *block, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
    )


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, dropout=0.1, activation="gelu", batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Words(torch.nn.Module):
    """Embeddings, a gated layer and a head, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, 32)
        self.gate, self.up = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.norm = torch.nn.RMSNorm(32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(input_ids)).cumsum(1)
        x = torch.nn.functional.silu(self.gate(x)) * self.up(x)
        return torch.log_softmax(x @ self.table.weight.T, -1)


torch_model("TransformerEncoder", encoder, sequence)
torch_model("convolutions", convolutions, partial(pixels, name="input"))
torch_model("Words", Words, text)

DOZEN = [
    "GPT2LMHeadModel", "LlamaForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM", "MambaForCausalLM",
    "BertForMaskedLM", "DebertaV2Model", "T5ForConditionalGeneration", "ViTForImageClassification", "SwinModel",
    "Wav2Vec2Model", "ResNetForImageClassification",
]  # fmt: skip
"""What the field trial and the planted elements begin with: one of each architecture."""
