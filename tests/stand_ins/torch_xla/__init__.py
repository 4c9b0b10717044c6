"""As torch_xla: a device plugin, on which torch's own `openxla` is built."""

print("torch_xla imported")
NAME = "xla"
