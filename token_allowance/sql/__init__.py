"""SQL of the stores, one file per database."""
