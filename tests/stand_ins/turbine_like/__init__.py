"""As IREE turbine: the entry point is an aot_autograd object."""
