"""Adaptive then fractional max pooling with kernel 0: max over no elements in the lowering. Source: pytorch/pytorch#188218."""

import torch
import torch.nn as nn

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.11", "2.13")  # eager itself refuses kernel 0 from 2.14 on


def make():
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.AdaptiveMaxPool2d((58, 83)), nn.FractionalMaxPool2d(0, output_size=(39, 24)), nn.ZeroPad2d(5)
    )
    return m, (torch.randn(2, 8, 16, 16),)
