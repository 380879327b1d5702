"""What people look at: the terminal, offline HTML pages, plots."""
