"""Workers on other machines: Ray's actors with an agent and a worker in each, and the bridge that stands for them."""
