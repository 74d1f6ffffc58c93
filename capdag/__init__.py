"""capdag: inference engines as supervised processes, reached by capability. Importing this package imports nothing."""
