"""`stoker demo`: the same photographs through torch's loader, through `stoker.install()`, and through `ImageFolder`."""
