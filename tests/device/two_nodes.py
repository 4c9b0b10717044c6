"""A repro of two nodes, ``two_nodes.py DEVICE FILE``, of which the backend refuses relu (ACME_BUG)."""

import sys

import torch

import minidbg

if __name__ == "__main__":
    device, path = sys.argv[1:]
    inputs = (torch.randn(4, 8, device=device),)
    minidbg.save_repro(lambda x: torch.relu(x.view(8, 4)), inputs, "acme", path)
