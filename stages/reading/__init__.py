"""Files of every format and dialect become conversations."""
