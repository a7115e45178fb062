"""One module for each subcommand of ``manage.py allowance``.

A module has ``HELP``, ``add_arguments(parser)`` and ``run(out, options)``; ``out`` writes lines.
"""
