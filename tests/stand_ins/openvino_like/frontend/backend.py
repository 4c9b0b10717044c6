def openvino(gm, example_inputs, options=None):
    print("compiled by openvino_like", options)
    return gm.forward
