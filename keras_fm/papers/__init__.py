"""The five papers, one folder each: query, layer, published form, model."""
