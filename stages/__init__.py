"""holdshort: a fine-tuning run holds short of the runway until every pre-flight gate is green."""
