"""As tt_torch: importing the package registers a name; needs a device plugin; takes a config object."""

from tt_like.dynamo import tt_backend


class CompilerConfig:
    pass
