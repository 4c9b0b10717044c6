def backend(gm, example_inputs):
    print("compiled by shadow_like")
    return gm.forward
