"""Every wait of the process backend, in seconds. None is without an end."""

LEAVE = 0.2
"""Zygote: how long busy workers may go on after their iterator was closed, before SIGKILL."""

CLOSE = 0.8
"""Trainer: how long the zygote may take to end itself and its workers, before SIGKILL."""

REAP = 0.5
"""Whoever has killed: until the kernel has taken the process down."""

PULSE = 5.0
"""Trainer: how often it asks a silent zygote for a sign of life while it waits for a batch."""

HUNG = 30.0
"""Trainer: a zygote that gave no sign of life for so long is stopped or broken, and is ended."""

OPENED = 600.0
"""Trainer: how long a clean zygote may take to import what it needs and to unpack the dataset, silent meanwhile."""

SICK_AFTER = 5.0
"""Zygote: workers that all wait for locks in their very first units for so long were born with a lock held."""

STACKS = 0.5
"""Zygote: how long a worker has to write its stacks."""
