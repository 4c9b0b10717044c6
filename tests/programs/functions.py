"""torch.func: gradients of each sample, a Hessian, an ensemble, a Jacobian-vector product."""

import torch
from results import show
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
weights = {name: value.detach() for name, value in model.named_parameters()}
x, y = torch.randn(6, 4), torch.randn(6, 1)


def loss(weights, x, y):
    return (functional_call(model, weights, (x.unsqueeze(0),)) - y).square().mean()


each = torch.compile(vmap(grad(loss), in_dims=(None, 0, 0)))(weights, x, y)
second = torch.compile(lambda x: hessian(lambda x: torch.sin(x).prod())(x))(x[0])
models = [torch.nn.Linear(4, 2) for _ in range(3)]
stacked, _ = stack_module_state(models)


@torch.compile
def ensemble(stacked, x):
    return vmap(lambda weights, x: functional_call(models[0], weights, (x,)), in_dims=(0, None))(stacked, x)


product = torch.compile(lambda x, v: jvp(lambda x: torch.exp(x).cumsum(0), (x,), (v,)))(x[0], x[1])
show(each=each, second=second, ensemble=ensemble(stacked, x), product=product)
