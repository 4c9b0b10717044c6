"""``minidbg watch`` and ``minidbg reduce`` on the machines of a Dask cluster. Importing this room imports no Dask."""
