"""The models that a run can train, called as transformers' are: `model(input_ids=...).logits`."""
