"""The command line: one file per group of commands.

`main.py` assembles the commands, `options.py` holds the options that several commands share, and
`output.py` prints. Modules that are slow to import are imported inside the commands, so that
`recombine --help` stays fast. Start with `main.py`.
"""
