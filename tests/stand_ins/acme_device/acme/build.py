"""Builds the device for the torch that runs this: ``python -m acme.build``. Once; later calls find the library."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def library() -> Path:
    """Where the library of this torch and this source lies, built or not; torch need not be imported for it."""
    from importlib.metadata import version

    source = hashlib.sha256((HERE / "acme.cpp").read_bytes()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "minidbg_acme"
    return cache / f"acme_{version('torch')}_{sys.version_info.minor}_{source}.so"


def build() -> Path:
    """The library, compiled if need be. Raises CalledProcessError with the compiler's words."""
    made = library()
    if made.exists():
        return made
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch

    home = Path(torch.__file__).parent
    made.parent.mkdir(parents=True, exist_ok=True)
    draft = made.with_suffix(f".{os.getpid()}")
    includes = [f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include"]
    links = [f"-L{home}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home}/lib"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    source = str(HERE / "acme.cpp")
    flags = ["-O0", "-w", "-shared", "-fPIC", "-std=c++20", abi]
    subprocess.run(["g++", *flags, source, *includes, *links, "-o", str(draft)], check=True)
    draft.replace(made)
    return made


if __name__ == "__main__":
    print(build())
