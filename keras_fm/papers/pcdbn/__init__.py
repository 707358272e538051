"""pCDBN: the private convolutional deep belief network (Phan et al. 2017)."""
