"""Records in other forms or ways: data sets, owners, several rounds, samples,
several machines, a choice among many."""
