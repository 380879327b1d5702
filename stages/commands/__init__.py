"""The commands of `holdshort`, a module each, and what several of them share."""
