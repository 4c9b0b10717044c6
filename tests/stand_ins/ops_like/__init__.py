"""Custom operators: the schema in one module, kernels in another, and one by decorator."""

from ops_like import kernels, schema
