"""As openvino: an entry point that leads to a function deep in the package; nothing is registered by an import."""
