"""Objects on their way to an interpreter that shares nothing with this one."""
