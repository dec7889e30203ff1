"""Functions that make recurrent models of other packages faster, one module per package.

Importing a module imports nothing of the other package; each function imports it when it is called.
"""
