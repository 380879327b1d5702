"""Is the text fit to be learned from? What shows before a tokenizer is chosen."""
