"""The program of `export --as script`, in pieces that the exporter joins into one file.

Nothing in imagebuild runs these modules: they run alone, in the container whose files they change, on the standard library of
Python 3.8 and later.  So they start processes, print and end the process themselves.
"""
