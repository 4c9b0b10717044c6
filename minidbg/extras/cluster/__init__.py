"""Many machines: repros run on the workers of a Dask cluster, whose devices are called ``machine/device``."""
