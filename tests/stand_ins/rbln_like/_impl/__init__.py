from rbln_like._impl import register
