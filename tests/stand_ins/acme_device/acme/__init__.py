"""A stand-in accelerator: ``torch.device("acme", 1)`` on a machine that has none. ``python -m acme.build`` first.

Torch loads it by its entry point ``torch.backends``. ``ACME_DEVICES=1`` leaves one device of two, ``ACME_GONE=file`` takes both
away while the file is there, ``ACME_LIMIT=1000000`` is the memory of acme:1 in bytes. ``ACME_LOCK=file`` has one process at a time
open the device: the first use locks that file. ``ACME_NAME=npu`` calls it npu, to try the tests for a
device that is not here: ``ACME_NAME=npu PYTHONPATH=tests/stand_ins/acme_device python -m pytest -m device --device npu``.
"""

import os

from acme.build import library

NAME = os.environ.get("ACME_NAME", "acme")


def autoload():
    """What the entry point names: the device, where it has been built."""
    if not library().exists() or os.environ.get("ACME_ON", NAME) != NAME:
        return
    import torch

    torch.ops.load_library(str(library()))
    torch.utils.rename_privateuse1_backend(NAME)
    from acme import module

    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    bug, _, op = os.environ.get("ACME_BUG", "").partition(":")
    if bug == "eager":  # the device's own eager is wrong there
        aten = autoload.library = torch.library.Library("aten", "IMPL")
        on_cpu = getattr(torch.ops.aten, op)
        aten.impl(op, lambda x, **how: on_cpu(x.cpu(), **how).to(x.device) + 1, "PrivateUse1")
    if limit := os.environ.get("ACME_LIMIT"):
        module.runtime.set_limit(1, int(limit))
