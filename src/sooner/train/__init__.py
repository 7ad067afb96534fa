"""Making drafters for a model from its own text: collect what it writes, then count or fit."""
