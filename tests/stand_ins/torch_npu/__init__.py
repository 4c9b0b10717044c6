"""As torch_npu: a device plugin."""

print("torch_npu imported")
NAME = "npu"
