"""As rebel: a private module registers a name when the package is imported."""

from rbln_like._impl import register as _register
