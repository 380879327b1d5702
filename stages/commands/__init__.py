"""The commands of `holdshort`, a module each: what DVC itself does not offer."""
