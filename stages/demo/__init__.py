"""The data and the tokenizer that come with the repository, and how they were made."""
