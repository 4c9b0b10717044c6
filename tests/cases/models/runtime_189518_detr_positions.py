"""DETR (random, bfloat16) that counts its positions over a mask of ones: they come out as int64, and a matmul is given float32. Source: pytorch/pytorch#189518."""

import torch

KIND = "runtime"
BACKEND = "inductor"
FAILS = ("2.13",)


class Counted(torch.nn.Module):
    """The sine embedding as transformers had it before it went round this failure."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, shape, device, dtype, mask=None):
        ones = torch.ones((shape[0], shape[2], shape[3]), device=device, dtype=torch.bool)
        y, x = ones.cumsum(1, dtype=dtype), ones.cumsum(2, dtype=dtype)
        y = y / (y[:, -1:, :] + 1e-6) * 6.28
        x = x / (x[:, :, -1:] + 1e-6) * 6.28
        period = torch.arange(self.features, dtype=torch.int64, device=device).to(dtype)
        period = 10000 ** (2 * torch.div(period, 2, rounding_mode="floor") / self.features)
        parts = []
        for axis in (y, x):
            angle = axis[:, :, :, None] / period
            parts.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=4).flatten(3))
        return torch.cat(parts, dim=3).permute(0, 3, 1, 2)


def make():
    from transformers import DetrConfig, DetrModel, ResNetConfig

    torch.manual_seed(0)
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )  # fmt: skip
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=4,
        decoder_attention_heads=4, num_queries=10,
    )  # fmt: skip
    model = DetrModel(config).eval().to(torch.bfloat16)
    model.position_embedding = Counted(16)
    return model, (torch.randn(1, 3, 64, 64, dtype=torch.bfloat16),)
