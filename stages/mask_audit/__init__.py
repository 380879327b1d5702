"""Every label judged, by code that did not set it."""
