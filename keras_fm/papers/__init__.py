"""The five papers, a room each: query, layer, published form, model."""
