"""Timeouts in seconds for every wait on a process. Spawned workers have no zygote: there the trainer applies them."""

LEAVE = 0.2
"""Zygote: time for busy workers to end after their iterator was closed, before SIGKILL."""

FLUSH = 5.0
"""Zygote: time for workers that have finalizers of multiprocessing, threads that are no daemons, or a queue to write
out; as with torch. Trainer: the additional time for a zygote that reports such workers."""

DEAD = 0.5
"""Worker: time to exit after the death of the trainer, on systems whose kernel does not kill it."""

CLOSE = 0.8
"""Trainer: time for the zygote to end its workers and itself, before SIGKILL."""

REAP = 0.5
"""Time for the kernel to remove a process after SIGKILL."""

GONE_BY_ITSELF = 2.0
"""Trainer: time for a spawned worker that has closed its pipe to end, before SIGKILL. A busy machine takes more than
half a second for the exit of an interpreter with torch, and a killed one has lost its exit code."""

GONE = 5.0
"""Trainer: the same for the zygote, which would stay a zombie of the user's program. A busy machine takes seconds."""

PULSE = 5.0
"""Trainer: interval of its questions to a silent zygote while it waits for a batch."""

HUNG = 30.0
"""Trainer: time without an answer after which a zygote counts as stopped or broken, and is killed."""

OPENED = 600.0
"""Trainer: the same limit before the workers start, for a clean zygote, which imports modules and unpickles a dataset
with `unpickle_once`, and for one that has reported that it marks a large heap. Zygote: time for a worker to unpickle
the job."""

LOCKED_AFTER = 5.0
"""Zygote: if all workers wait for locks for this time in their first units, a lock was held at the fork."""

LOOK = 0.1
"""Zygote: interval at which it reads the memory of a worker, or after each unit if units take longer."""

HELD_BACK = 0.5
"""Zygote: pause before it tries again to start a worker; trainer: before it tries to start another zygote."""

PATIENCE = 30.0
"""Zygote: time for such tries when no worker is left; trainer: when it cannot start another zygote."""

FROZEN = 1.0
"""Trainer: if it wakes this much later than planned it was suspended, and so were its workers. That time does not
count."""

SERVED = 0.05
"""Trainer: time for returned memory to reach the waiting worker. After that, it runs the garbage collector to find
more, which may take longer than a batch."""

STACKS = 0.5
"""Zygote: time for a worker to write its stacks."""
