"""One comment for a pull request: what a commit or the working tree changes of the evidence, against the merge base.

Reads git objects, the working tree and DVC's cache; runs no model, checks nothing out, asks no network. What cannot be told (a
shallow clone, an empty cache, a broken file) becomes a sentence of the comment, with the command that mends it.
"""
