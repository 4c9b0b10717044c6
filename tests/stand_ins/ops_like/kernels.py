import torch

from ops_like.schema import library


@torch.library.impl("ops_like::double", "CompositeExplicitAutograd")
def double(x):
    return x * 2


@torch.library.register_fake("ops_like::double")
def _(x):
    return torch.empty_like(x)


library.impl("triple", lambda x: x * 3, "CompositeExplicitAutograd")


@torch.library.register_fake("ops_like_library::triple")
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("ops_like::quadruple", mutates_args=())
def quadruple(x: torch.Tensor) -> torch.Tensor:
    return x * 4


@quadruple.register_fake
def _(x):
    return torch.empty_like(x)


@torch._dynamo.allow_in_graph
def quintuple(x):
    return x * 5
