"""AdLM: noise on a network's input, by relevance (Phan et al. 2017)."""
