"""Files that are written whole or not at all: checkpoints, safetensors, locks, warm starts.

Imports no other room."""
