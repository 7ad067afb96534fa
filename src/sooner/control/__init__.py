"""Controllers: how much drafting each sequence gets at the next step. Each fits `protocols.Controller`."""
