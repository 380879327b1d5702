"""The rule book: what each gate checks, in the field's words, and which keys hold its limits."""
