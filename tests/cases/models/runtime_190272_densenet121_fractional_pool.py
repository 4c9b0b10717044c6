"""DenseNet-121 (own implementation, narrow) with fractional max pooling in the second transition: index check throws at run time. Source: pytorch/pytorch#190272."""

import torch
import torch.nn as nn

KIND = "runtime"
BACKEND = "inductor"
FAILS = ("2.13",)


class Layer(nn.Module):
    def __init__(self, c, g):
        super().__init__()
        self.net = nn.Sequential(
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, 4 * g, 1, bias=False),
            nn.BatchNorm2d(4 * g),
            nn.ReLU(),
            nn.Conv2d(4 * g, g, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return torch.cat([x, self.net(x)], 1)


def densenet(blocks=(6, 12, 24, 16), g=4, classes=10):
    c = 2 * g
    layers = [nn.Conv2d(3, c, 7, 2, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for i, n in enumerate(blocks):
        for _ in range(n):
            layers.append(Layer(c, g))
            c += g
        if i < len(blocks) - 1:
            pool = nn.FractionalMaxPool2d(-1, output_size=(8, 8)) if i == 1 else nn.AvgPool2d(2, 2)
            layers += [nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c // 2, 1, bias=False), pool]
            c //= 2
    layers += [nn.BatchNorm2d(c), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes)]
    return nn.Sequential(*layers)


def make():
    torch.manual_seed(0)
    return densenet().eval(), (torch.randn(1, 3, 128, 128),)
