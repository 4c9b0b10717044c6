"""The package's attribute `backend` is a function and hides the module of that name."""

from shadow_like.backend import backend
