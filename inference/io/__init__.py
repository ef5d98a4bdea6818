"""Files that are written whole or not at all, with a digest: checkpoints, safetensors, JSON, locks, warm starts.

Imports no other room."""
