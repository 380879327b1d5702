"""Faults that are known to ruin a training in silence, to be planted so that the gates prove it."""
