"""A repro of two nodes, ``two_nodes.py DEVICE FILE``, of which the backend refuses relu (ACME_BUG)."""

import sys

import torch

import minidbg


def function(x):
    return torch.relu(x.view(8, 4))


if __name__ == "__main__":
    device, path = sys.argv[1:]
    minidbg.save_repro(function, (torch.randn(4, 8, device=device),), "acme", path)
