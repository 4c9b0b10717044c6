def hidet_like_backend(gm, example_inputs, *, mode=None, options=None):
    if mode not in (None, "max-autotune"):
        raise ValueError(f"unknown mode {mode}")
    if set(options or {}) - {"level"}:
        raise ValueError(f"unknown options {options}")
    print("compiled by hidet_like", mode, options)
    return gm.forward
