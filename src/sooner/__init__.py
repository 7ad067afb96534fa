"""sooner: the same text, sooner."""
