"""As hidet: importing the package registers a name; mode and options are checked strictly."""

from torch._dynamo import register_backend

from hidet_like._backend import hidet_like_backend

register_backend(hidet_like_backend, name="hidet_like")
