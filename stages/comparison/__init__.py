"""Arms side by side: they differ in one thing, and are trained by the one training step."""
