"""Conversations become labelled tokens, and labelled tokens become batches."""
