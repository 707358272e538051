"""dPA: the deep private auto-encoder (Phan et al. 2016)."""
