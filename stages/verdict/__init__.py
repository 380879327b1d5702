"""What a gate finds and whether it passes: rules, checks, verdicts, and the clearance of a run."""
