"""Where bytes come from: digests of files and code, the environment that computes, the commit."""
