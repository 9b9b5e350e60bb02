"""The nouns that cross a boundary, as frozen records with one codec.

Records import nothing of the project but `errors`; they hold no behaviour beyond small derived values.
"""
