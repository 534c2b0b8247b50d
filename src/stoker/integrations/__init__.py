"""Parts for frameworks, one file each: a file imports its framework, and needs the extra of its name."""
