"""What is recorded of a model, as in-toto, SLSA and CycloneDX say it, and the keys that sign it."""
