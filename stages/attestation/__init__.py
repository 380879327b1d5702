"""What is recorded of a model, in the words of in-toto, SLSA and CycloneDX."""
