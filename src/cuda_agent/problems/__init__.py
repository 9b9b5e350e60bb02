"""Problems: files in KernelBench form, directories and data sets of them, and a built-in suite.

Only text is handled here: a problem file is parsed, never run. Workers run it.
"""
