"""Proof on the user's own model: whether drafting changes anything, with controls that show the check can see it."""
