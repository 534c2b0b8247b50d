"""Every wait for processes, in seconds. None is without an end. Where there is no zygote the trainer does its part."""

LEAVE = 0.2
"""Zygote: how long busy workers may go on after their iterator was closed, before SIGKILL."""

FLUSH = 5.0
"""Zygote: how long workers may take that have finalizers of multiprocessing, threads that are no daemons, or a queue to
write out; as long as with torch. Trainer: how much longer it waits for a zygote that says so."""

DEAD = 0.5
"""Worker: how long it may take to leave when it has found the trainer dead, where the kernel does not end it."""

CLOSE = 0.8
"""Trainer: how long the zygote may take to end itself and its workers, before SIGKILL."""

REAP = 0.5
"""After a SIGKILL: until the kernel has taken the process down."""

GONE = 5.0
"""Trainer: the same for the zygote, which would stay a zombie of the user's program. A busy machine takes seconds."""

PULSE = 5.0
"""Trainer: how often it asks a silent zygote for a sign of life while it waits for a batch."""

HUNG = 30.0
"""Trainer: a zygote that gave no sign of life for so long is stopped or broken, and is ended."""

OPENED = 600.0
"""Trainer: how long a zygote may be silent before its workers are born: a clean one, which imports what it needs and
unpickles a dataset that declares `unpickle_once`, and any that has said that it marks a large heap. Zygote: how long a
worker may unpickle what it was sent."""

LOCKED_AFTER = 5.0
"""Zygote: workers that all wait for locks in their very first units for so long were born with a lock held."""

LOOK = 0.1
"""Zygote: how often it looks at the memory of a worker that answers; after each unit that takes longer."""

HELD_BACK = 0.5
"""Zygote: until it tries again to start a worker that could not be started; trainer: another zygote."""

PATIENCE = 30.0
"""Zygote: how long it goes on trying when no worker is left; trainer: when another zygote cannot be started."""

FROZEN = 1.0
"""Trainer: who wakes so much later than asked was stopped, as the others will have been: a job that was suspended, a
machine that slept. That time does not count."""

SERVED = 0.05
"""Trainer: until memory that it gave back has reached who waits for it. Only then it looks for more, among garbage:
that may take longer than a batch."""

STACKS = 0.5
"""Zygote: how long a worker has to write its stacks."""
