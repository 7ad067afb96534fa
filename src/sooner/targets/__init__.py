"""Models that score tokens: `toy` (exact, for laws and demos) and `openvino` (CPU). Each fits `protocols.Target`."""
