"""Many machines: repros run on a Dask cluster's workers, with devices called ``machine/device``."""
