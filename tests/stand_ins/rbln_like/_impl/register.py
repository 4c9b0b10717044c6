from torch._dynamo import register_backend

from rbln_like._impl.compile import rbln_compile

register_backend(name="rbln_like", compiler_fn=rbln_compile)
