"""Which import registers a backend's name."""

from __future__ import annotations

import pytest

from minidbg.backends.reference import registers

REGISTERS = [
    "@register_backend\ndef mine(gm, inputs): ...",
    "@register_backend(name='mine')\ndef other(gm, inputs): ...",
    "@torch._dynamo.register_backend(name='mine', tags=('debug',))\ndef other(gm, inputs): ...",
    "@register_debug_backend\ndef mine(gm, inputs): ...",
    "register_backend(mine)",
    "register_backend(compiler_fn=mine)",
    "register_backend(other, 'mine')",
    "registry.register_backend(name='mine', compiler_fn=aot_autograd(fw_compiler=f))",
    "if True:\n    try:\n        register_backend(f, name='mine')\n    except ImportError:\n        pass",
    "def go():\n    register_backend(f, name='mine')\ngo()",
    "class C:\n    register_backend(f, name='mine')",
]
REGISTERS_NOTHING = [
    "def go():\n    register_backend(f, name='mine')",
    "go = lambda: register_backend(f, name='mine')",
    "register_backend(f, name='other')",
    "register_backend(mine, name='other')",
    "@register_backend(name='other')\ndef mine(gm, inputs): ...",
    "lookup_backend('mine')",
    "def mine(gm, inputs): ...",
    "this is no Python 'mine'",
]


@pytest.mark.parametrize("text", [*REGISTERS, *REGISTERS_NOTHING])
def test_source_that_registers_the_name_is_told_from_one_that_does_not(text: str) -> None:
    assert registers(text, "mine") is (text in REGISTERS)
