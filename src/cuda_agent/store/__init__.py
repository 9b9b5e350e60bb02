"""Where results live: the cache folder, run folders and append-only journals.

Everything here is plain files that a person can read; a reader never sees half a file.
"""
