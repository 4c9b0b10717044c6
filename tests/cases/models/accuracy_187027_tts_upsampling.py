"""A text-to-speech model (BERT encoder, upsampling, coupling flow with flips, vocoder) whose pitch track runs backwards. Source: pytorch/pytorch#187027."""

import torch
import torch.nn as nn
import torch.nn.functional as F

KIND = "accuracy"
BACKEND = "inductor"
DYNAMIC = True
FAILS = ("2.13",)


class Coupling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.half = width // 2
        self.pre, self.post = nn.Conv1d(self.half, width, 1), nn.Conv1d(width, self.half, 1)
        self.gates, self.mix = nn.Conv1d(width, 2 * width, 3, padding=1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        first, second = x.split(self.half, 1)
        h = self.pre(first)
        t, s = self.gates(h).chunk(2, 1)
        h = self.mix(torch.tanh(t) * torch.sigmoid(s)) + h
        return torch.cat([first, second + self.post(h)], 1).flip(1)


class Speech(nn.Module):
    def __init__(self, encoder, width=32):
        super().__init__()
        self.encoder = encoder
        self.pitch, self.pitch_in = nn.Linear(width, 1), nn.Linear(1, width)
        self.flows = nn.ModuleList(Coupling(width) for _ in range(3))
        self.up = nn.ConvTranspose1d(width, width // 2, 4, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width // 2, width // 2, 3, padding=d, dilation=d) for d in (1, 3, 5)
        )
        self.wave = nn.Conv1d(width // 2, 1, 7, padding=3)

    def forward(self, ids):
        h = self.encoder(ids).last_hidden_state
        pitch = self.pitch(h).squeeze(-1)
        track = torch.repeat_interleave((pitch + 1).flatten(), 2).flip(0).view(ids.shape[0], -1, 1)
        x = (torch.repeat_interleave(h, 2, 1) + self.pitch_in(track)).transpose(1, 2)
        for flow in self.flows:
            x = flow(x)
        y = F.leaky_relu(self.up(x), 0.1)
        for block in self.blocks:
            y = y + block(F.leaky_relu(y, 0.1))
        return torch.tanh(self.wave(F.leaky_relu(y)))


def make():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    model = Speech(BertModel(config, add_pooling_layer=False)).eval()
    return model, (torch.randint(0, 50, (2, 12)),)
