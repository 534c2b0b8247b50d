"""`stoker profile SCRIPT`: where the time of a program's loop goes, by stage, sample, transform and worker."""
