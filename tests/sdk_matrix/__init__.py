"""Every supported version of every SDK, each in a process that sees only that one."""
