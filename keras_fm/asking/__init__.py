"""Questions about private records: how good a model is, which one is best."""
