"""One module per question asked of a model or a run; each measures, none judges."""
