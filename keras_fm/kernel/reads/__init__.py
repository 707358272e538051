"""Records that come in other shapes or another way: data sets, owners, several
passes, samples, several machines, a choice among many."""
