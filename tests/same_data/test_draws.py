"""Random numbers are drawn when torch's loader draws them: the global generator stands alike after each call."""

from __future__ import annotations


def generator_states(data):
    import torch

    def stands():
        return torch.get_rng_state().sum().item(), torch.get_rng_state()[:64].tolist()

    found = []
    for workers, persistent, settings in (
        (0, False, {}),
        (2, False, {}),
        (2, True, {}),
        (0, False, {"shuffle": True}),
        (2, False, {"shuffle": True}),
        (2, True, {"shuffle": True}),
    ):
        torch.manual_seed(3)
        loader = data.DataLoader(
            list(range(10)), batch_size=2, num_workers=workers, persistent_workers=persistent, **settings
        )
        for _ in range(2):
            iterator = iter(loader)
            found.append(stands())
            for _batch in iterator:
                found.append(stands())
            found.append(stands())
    return found


def test_global_generator_stands_as_with_torch(same):
    same(generator_states)


def sampler_that_draws_while_it_is_walked(data):
    import torch

    class Draws(data.Sampler):
        def __iter__(self):
            for _ in range(20):
                walked.append(len(walked))
                yield int(torch.randint(20, ()).item())

        def __len__(self):
            return 20

    found = []
    for workers in (0, 2):
        walked = []
        torch.manual_seed(1)
        iterator = iter(data.DataLoader(list(range(20)), batch_size=2, sampler=Draws(), num_workers=workers))
        found.append(len(walked))
        for batch in iterator:
            found.append((len(walked), batch.tolist()))
    return found


def test_sampler_is_walked_as_far_as_torch_walks_it(same):
    same(sampler_that_draws_while_it_is_walked)
